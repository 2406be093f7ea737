/** The "What if" tab's style; part of the view's. */

export const WHATIF_STYLE = `
.whatif { padding: 8px 4px 4px; }
.whatif .verdict { font-size: 14px; line-height: 1.4; font-weight: 600; color: var(--gm-fg); margin: 0 0 6px; text-wrap: pretty; overflow-wrap: anywhere; }
.whatif .verdict code { font-size: 13px; font-weight: 500; background: var(--gm-soft); border-radius: 4px; padding: 0 4px; }
.whatif .verdict.bad { border-inline-start: 4px solid var(--gm-danger); padding-inline-start: 8px; }
.whatif .verdict.good { border-inline-start: 4px solid var(--gm-good); padding-inline-start: 8px; }
.gm { --gm-good: #1a7f4b; } .gm[data-theme="dark"] { --gm-good: #4fc48a; }
.whatif td.conf { font-family: var(--gm-code); font-size: 12px; white-space: normal; }
.whatif td.conf small { font-family: system-ui, sans-serif; font-size: 11px; color: var(--gm-muted); margin-inline-start: 6px; white-space: nowrap; }
.whatif td.conf b { font-weight: 600; }
.whatif tr.best td.conf small { color: var(--gm-good); font-weight: 600; }
.whatif tr.inert td { color: var(--gm-muted); }
.whatif td.outcome { font-size: 12px; overflow-wrap: anywhere; min-width: 150px; }
.whatif td.outcome.bad { color: var(--gm-danger); }
.whatif td.n.less { color: var(--gm-good); font-weight: 600; } .whatif td.n.more { color: var(--gm-danger); }
.whatif tbody tr { cursor: default; }
.whatif td.track { width: 40%; min-width: 120px; padding-block: 0; }
.whatif .limited td.track { width: 20%; }
.whatif .limited td.outcome { width: 34%; }
.whatif .bars { position: relative; height: 16px; background: var(--gm-soft); border-radius: 2px; overflow: hidden; }
.whatif .bars i { position: absolute; inset-block: 3px; inset-inline-start: 0; border-radius: 2px; background: var(--gm-muted); }
.whatif .bars i.best { background: var(--gm-good); } .whatif .bars i.bad { background: repeating-linear-gradient(135deg, var(--gm-danger) 0 3px, transparent 3px 6px); }
.whatif .bars i.now { background: var(--gm-fg); }
.whatif .bars u { position: absolute; inset-block: 1px; border: 1px solid var(--gm-fg); border-inline-width: 2px; border-block: 0; background: color-mix(in srgb, var(--gm-fg) 18%, transparent); }
.whatif .bars s { position: absolute; inset-block: 0; width: 0; border-inline-start: 2px dashed var(--gm-accent); }
.whatif .bars s.cap { border-inline-start: 2px solid var(--gm-danger); }
.whatif .key { display: flex; flex-wrap: wrap; gap: 2px 14px; font-size: 11.5px; color: var(--gm-muted); margin: 4px; }
.whatif .key span { display: inline-flex; gap: 5px; align-items: center; }
.whatif .key s { width: 0; height: 12px; border-inline-start: 2px dashed var(--gm-accent); }
.whatif .key s.cap { border-inline-start: 2px solid var(--gm-danger); }
.whatif .paste { margin: 8px 4px; display: grid; gap: 6px; }
.whatif .paste > div { display: grid; grid-template-columns: 1fr auto; gap: 2px 8px; align-items: center; }
.whatif .paste span { grid-column: 1 / -1; font-size: 12px; color: var(--gm-muted); }
.whatif .paste code { background: var(--gm-soft); border-radius: 4px; padding: 4px 8px; overflow-wrap: anywhere; user-select: all; }
.whatif form { display: flex; flex-wrap: wrap; gap: 6px 8px; align-items: end; margin: 8px 4px; }
.whatif form label { display: grid; gap: 2px; font-size: 11px; color: var(--gm-muted); flex: 1 1 260px; }
.whatif form label.cap { flex: 0 1 130px; }
.gm .whatif form input { font-family: var(--gm-code); width: 100%; color: var(--gm-fg); }
.whatif .wrong { margin: 4px; font-size: 12px; color: var(--gm-danger); overflow-wrap: anywhere; }
.whatif .working { display: flex; gap: 8px; align-items: center; margin: 6px 4px; font-size: 12px; color: var(--gm-muted); }
.whatif progress { width: 160px; height: 8px; accent-color: var(--gm-accent); }
.whatif .sure, .whatif .why { margin: 6px 4px; font-size: 12px; color: var(--gm-muted); overflow-wrap: anywhere; }
.whatif .sure.less { color: var(--gm-warn); }
.whatif details { margin: 4px; font-size: 12px; color: var(--gm-muted); }
.panel.extra { max-height: none; }
.gm.narrow .whatif td.track, .gm.narrow .whatif th.track { display: none; }
.gm.narrow .whatif table, .gm.narrow .whatif tbody, .gm.narrow .whatif tr { display: block; }
.gm.narrow .whatif thead { display: none; }
.gm.narrow .whatif tr { display: flex; flex-wrap: wrap; gap: 0 10px; border-top: 1px solid var(--gm-border); padding: 3px 0; }
.gm.narrow .whatif td { border: 0; padding: 1px 4px; width: auto; }
.gm.narrow .whatif td.conf { overflow-wrap: anywhere; }
.gm.narrow .whatif td.conf, .gm.narrow .whatif td.outcome { flex: 1 0 100%; }
`;
