/** Files and the clipboard. */

import { drawPicture } from '../draw/picture';
import { SvgPen } from '../draw/svg';
import type { Session } from '../session';
import type { PictureView } from './picture';

function download(blob: Blob, name: string): void {
  const url = URL.createObjectURL(blob);
  const link = document.createElement('a');
  link.href = url;
  link.download = name;
  link.click();
  // The click is handled later than it returns.
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

export function fileName(session: Session, extension: string): string {
  const { title } = session.document.header;
  const safe = title.replace(/[^\p{L}\p{N}._-]+/gu, '-').replace(/^-+|-+$/g, '') || 'gpumem';
  return `${safe}.${session.source.recording.device.key.replace(':', '')}.${extension}`;
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
export function savePng(view: PictureView, session: Session): void {
  const { clientWidth: width, clientHeight: height } = view.picture;
  const canvas = document.createElement('canvas');
  canvas.width = width * 2;
  canvas.height = height * 2;
  const pen = canvas.getContext('2d');
  if (pen === null) return;
  pen.scale(2, 2);
  drawPicture(pen, width, height, view.scene(2));
  canvas.toBlob(blob => {
    if (blob !== null) download(blob, fileName(session, 'png'));
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
