/** Files and the clipboard. */

import { drawPicture } from '../draw/picture';
import { SvgPen } from '../draw/svg';
import type { Session } from '../session';
import type { PictureView } from './picture';

export function download(blob: Blob, name: string): void {
  const url = URL.createObjectURL(blob);
  const link = document.createElement('a');
  link.href = url;
  link.download = name;
  link.click();
  // The click is handled later than it returns.
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

export function fileName(session: Session, extension: string): string {
  return `${safeName(session.document.header.title)}.${session.source.recording.device.key.replace(':', '')}.${extension}`;
}

function safeName(title: string): string {
  return title.replace(/[^\p{L}\p{N}._-]+/gu, '-').replace(/^-+|-+$/g, '') || 'gpumem';
}

export function pictureSvg(view: PictureView): string {
  const { clientWidth: width, clientHeight: height } = view.picture;
  const pen = new SvgPen(width, height);
  drawPicture(pen, width, height, view.scene(1));
  return pen.toString();
}

export function saveSvg(view: PictureView, session: Session): void {
  download(new Blob([pictureSvg(view)], { type: 'image/svg+xml' }), fileName(session, 'svg'));
}

/** Always at two pixels per CSS pixel: what is saved is meant for slides and papers. */
const DENSITY = 2;

export function savePng(view: PictureView, session: Session): void {
  writePng([view], fileName(session, 'png'));
}

/** Several pictures beside each other. */
export function savePictures(views: readonly PictureView[], title: string): void {
  writePng(views, `${safeName(title)}.png`);
}

function writePng(views: readonly PictureView[], name: string): void {
  const canvas = document.createElement('canvas');
  canvas.width = DENSITY * views.reduce((sum, view) => sum + view.picture.clientWidth, 0);
  canvas.height = DENSITY * views.reduce((most, view) => Math.max(most, view.picture.clientHeight), 0);
  const pen = canvas.getContext('2d');
  if (pen === null) return;
  pen.scale(DENSITY, DENSITY);
  for (const view of views) {
    const { clientWidth: width, clientHeight: height } = view.picture;
    pen.save();
    drawPicture(pen, width, height, view.scene(DENSITY));
    pen.restore();
    pen.translate(width, 0);
  }
  canvas.toBlob(blob => {
    if (blob !== null) download(blob, name);
  }, 'image/png');
}

/** Put text on the clipboard, by the old way where the page may not use the new one (plain HTTP, an embedded frame). */
export async function copyText(text: string, beside: Element): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = document.createElement('textarea');
    area.value = text;
    area.className = 'sr';
    beside.append(area);
    area.select();
    const done = document.execCommand('copy');
    area.remove();
    return done;
  }
}
