/** The "Segments" tab's style; part of the view's. */

export const SEGMENTS_STYLE = `
.segments { padding: 8px 4px 4px; }
.segments .says { font-size: 14px; line-height: 1.4; font-weight: 600; color: var(--gm-fg); margin: 0 0 6px; text-wrap: pretty; }
.segments .share { display: flex; height: 12px; border-radius: 3px; overflow: hidden; margin: 0 0 6px; border: 1px solid var(--gm-border); }
.segments .share i { display: block; min-width: 0; }
.segments .moment { display: flex; flex-wrap: wrap; gap: 4px 8px; align-items: center; margin: 6px 0; font-size: 12px; }
.segments .moment input { flex: 1 1 220px; padding: 0; border: 0; background: none; accent-color: var(--gm-accent); min-width: 120px; }
.segments .moment output { min-width: 150px; color: var(--gm-fg); }
.segments .tools { display: flex; flex-wrap: wrap; gap: 4px 10px; align-items: center; font-size: 12px; color: var(--gm-muted); margin: 0 0 4px; }
.segments .tools label { display: inline-flex; gap: 5px; align-items: center; }
.segments .keys { display: flex; flex-wrap: wrap; gap: 2px 12px; list-style: none; margin: 0; padding: 0; font-size: 11.5px; }
.segments .keys li { display: inline-flex; gap: 5px; align-items: center; }
.segments .map { position: relative; overflow-y: auto; overflow-x: hidden; border: 1px solid var(--gm-border); border-radius: 4px; padding: 2px 0 0; }
.segments .map canvas { position: sticky; top: 0; display: block; width: 100%; cursor: pointer; }
.segments .map .spacer { pointer-events: none; }
.segments .tip { position: absolute; z-index: 12; pointer-events: none; max-width: 340px; padding: 6px 9px; font-size: 12px; background: var(--gm-raised); border: 1px solid var(--gm-border); border-radius: 6px; box-shadow: 0 4px 14px rgb(0 0 0 / .2); }
.segments .frame { position: relative; }
.segments .lens { margin: 8px 0 2px; font-size: 12.5px; }
.segments .lens h4 { margin: 0 0 4px; font-size: 13px; }
.segments .lens canvas { display: block; width: 100%; height: 26px; }
.segments .facts { display: flex; flex-wrap: wrap; gap: 1px 14px; font-size: 12px; margin: 0 0 4px; color: var(--gm-muted); }
.segments .facts b { color: var(--gm-fg); font-weight: 600; }
.segments details { margin: 6px 0; font-size: 12px; }
.segments summary { cursor: pointer; color: var(--gm-muted); }
.segments details dl { display: grid; grid-template-columns: max-content 1fr; gap: 1px 12px; margin: 4px 0; }
.segments dt { color: var(--gm-fg); } .segments dd { margin: 0; color: var(--gm-muted); }
.segments .scroll { max-height: 320px; overflow: auto; }
.segments .problem { font-size: 12px; color: var(--gm-warn); margin: 4px 0; }
.gm.narrow .segments details dl { grid-template-columns: 1fr; }
.gm.narrow .segments .moment output { flex: 1 0 100%; }
`;
