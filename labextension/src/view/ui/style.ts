/**
 * The view's style, inside its shadow root: the notebook's rules do not reach in, ours do not reach out. Colours come
 * from Jupyter's variables, then VS Code's, then our own for the theme that `data-theme` names. No text under 11 px.
 */

/** Layers, lowest first. */
const Z = { overlay: 1, tooltip: 10, menu: 20, sheet: 30 } as const;

export const STYLE = `
:host { display: block; contain: content; }
.gm {
  --gm-bg: var(--jp-layout-color0, var(--vscode-editor-background, var(--gm-own-bg)));
  --gm-raised: var(--jp-layout-color1, var(--vscode-editorWidget-background, var(--gm-own-raised)));
  --gm-soft: var(--jp-layout-color2, var(--gm-own-soft));
  --gm-fg: var(--jp-ui-font-color0, var(--vscode-editor-foreground, var(--gm-own-fg)));
  --gm-muted: var(--gm-own-muted);
  --gm-border: var(--jp-border-color2, var(--vscode-panel-border, var(--gm-own-border)));
  --gm-accent: var(--gm-own-accent);
  --gm-danger: var(--gm-own-danger);
  --gm-warn: var(--gm-own-warn);
  --gm-code: var(--jp-code-font-family, ui-monospace, SFMono-Regular, Menlo, Consolas, monospace);
  --gm-own-bg: #ffffff; --gm-own-raised: #ffffff; --gm-own-soft: #f1f3f5; --gm-own-fg: #1b1f24; --gm-own-muted: #5b6470;
  --gm-own-border: #d8dce1; --gm-own-accent: #0b62d6; --gm-own-danger: #b3121d; --gm-own-warn: #8a5a00;
  background: var(--gm-bg); color: var(--gm-fg);
  font: 13px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif;
  font-variant-numeric: tabular-nums; text-align: start; position: relative; padding: 10px 12px 12px; box-sizing: border-box;
}
.gm[data-theme="dark"] {
  --gm-own-bg: #111418; --gm-own-raised: #1a1e24; --gm-own-soft: #232830; --gm-own-fg: #e8eaed; --gm-own-muted: #a2abb6;
  --gm-own-border: #363c45; --gm-own-accent: #7ab4ff; --gm-own-danger: #ff8079; --gm-own-warn: #e0b050;
  color-scheme: dark;
}
.gm *, .gm *::before { box-sizing: border-box; }
.gm button, .gm select, .gm input { font: inherit; font-size: 12px; color: inherit; background: var(--gm-raised);
  border: 1px solid var(--gm-border); border-radius: 5px; padding: 2px 8px; min-height: 26px; margin: 0; }
.gm button { cursor: pointer; }
.gm button:hover { background: var(--gm-soft); }
.gm button[aria-pressed="true"] { border-color: var(--gm-accent); color: var(--gm-accent); }
.gm :focus-visible { outline: 2px solid var(--gm-accent); outline-offset: 1px; }
.gm code, .gm .code { font-family: var(--gm-code); font-size: 12px; }
.muted { color: var(--gm-muted); }
.sr { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; }

.top { display: flex; gap: 8px; align-items: baseline; justify-content: space-between; }
.sentence { font-size: 15px; line-height: 1.4; font-weight: 600; margin: 0 0 6px; text-wrap: pretty; overflow-wrap: anywhere; }
.sentence code { font-size: 14px; font-weight: 500; background: var(--gm-soft); border-radius: 4px; padding: 0 4px; }
.title { flex: none; color: var(--gm-muted); font-size: 12px; }
.bad .sentence { border-inline-start: 4px solid var(--gm-danger); padding-inline-start: 8px; }
.notes { margin: 0 0 6px; padding: 0; list-style: none; font-size: 12px; }
.notes li { padding: 1px 0; overflow-wrap: anywhere; color: var(--gm-muted); }
.notes summary { color: var(--gm-muted); cursor: pointer; }
.notes li.warning { color: var(--gm-warn); }
.notes li.error { color: var(--gm-danger); font-family: var(--gm-code); }
.numbers { display: flex; flex-wrap: wrap; gap: 1px; margin: 0 0 8px; border: 1px solid var(--gm-border); border-radius: 7px; overflow: hidden;
  background: var(--gm-border); }
.numbers > div { flex: 1 1 auto; padding: 4px 8px 5px; background: var(--gm-bg); min-width: 74px; }
.numbers dt { font-size: 11px; color: var(--gm-muted); white-space: nowrap; }
.numbers dd { margin: 0; font-size: 14px; font-weight: 600; white-space: nowrap; }
.numbers dd small { font-size: 11px; font-weight: 400; color: var(--gm-muted); }
.numbers .key dd { font-size: 17px; line-height: 1.2; }
.numbers .bad dd { color: var(--gm-danger); }

.devices { display: flex; gap: 4px; margin: 0 0 6px; flex-wrap: wrap; }
.devices [aria-selected="true"] { border-color: var(--gm-accent); color: var(--gm-accent); font-weight: 600; }
.toolbar { display: flex; flex-wrap: wrap; gap: 6px; align-items: center; margin: 0 0 4px; }
.toolbar label { display: inline-flex; gap: 5px; align-items: center; font-size: 12px; color: var(--gm-muted); }
.toolbar .gap { flex: 1; }
.search { display: inline-flex; gap: 4px; align-items: center; }
.search input { width: 136px; }
.gm .toolbar select { max-width: 134px; }
.search output { font-size: 12px; color: var(--gm-muted); white-space: nowrap; }
.search output.error { color: var(--gm-danger); white-space: normal; }
.zoom { display: inline-flex; }
.zoom button { border-radius: 0; margin-inline-start: -1px; min-width: 28px; }
.zoom button:first-child { border-radius: 5px 0 0 5px; margin: 0; }
.zoom button:last-child { border-radius: 0 5px 5px 0; }
.menu { position: relative; }
.menu > div { position: absolute; inset-inline-end: 0; top: 100%; z-index: ${Z.menu}; display: none; flex-direction: column; gap: 2px; padding: 4px; min-width: 190px;
  background: var(--gm-raised); border: 1px solid var(--gm-border); border-radius: 7px; box-shadow: 0 6px 20px rgb(0 0 0 / .22); }
.menu > div.open { display: flex; }
.menu > div button { text-align: start; border-color: transparent; }
.gm .menu button:disabled { color: var(--gm-muted); cursor: default; max-width: 260px; white-space: normal; }

.picture { position: relative; height: calc(320px + var(--gm-extra, 0px)); min-height: 180px; max-height: 1200px; overflow: hidden; resize: vertical; touch-action: pan-y; }
.minimap { position: relative; height: 40px; touch-action: none; cursor: ew-resize; }
.picture canvas, .minimap canvas { position: absolute; inset: 0; width: 100%; height: 100%; display: block; }
.picture .overlay { z-index: ${Z.overlay}; cursor: crosshair; }
.picture.zoomed .overlay { cursor: grab; }
.picture.dragging .overlay { cursor: grabbing; }
.picture .overlay:focus-visible { outline-offset: -2px; }
.hint { position: absolute; inset-inline-end: 16px; bottom: 28px; z-index: ${Z.overlay}; font-size: 11px; color: var(--gm-muted);
  background: var(--gm-bg); padding: 1px 6px; border-radius: 4px; pointer-events: none; }
.nothing { padding: 18px 12px; border: 1px dashed var(--gm-border); border-radius: 7px; color: var(--gm-muted); }

.legend { display: flex; flex-wrap: wrap; gap: 2px 4px; margin: 2px 0 8px; padding: 0; list-style: none; }
.gm .legend button { color: inherit; display: inline-flex; gap: 6px; align-items: center; max-width: 340px; min-height: 24px; padding: 1px 7px; border-color: transparent; background: none; }
.gm .legend button:hover { background: var(--gm-soft); }
.gm .legend button[aria-pressed="false"] { opacity: .5; text-decoration: line-through; }
.legend .text { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.legend .code { color: var(--gm-muted); }
/* A rule between bands and lines, which is clipped away where the lines begin a row. */
.legend { clip-path: inset(-2px -2px -2px 0); }
.gm .legend button:focus-visible { outline-offset: -2px; }
.legend .apart { position: relative; }
.legend .apart::before { content: ""; position: absolute; inset-inline-start: -3px; top: 3px; bottom: 3px; width: 1px; background: var(--gm-border); }
.swatch { flex: none; width: 11px; height: 11px; border-radius: 3px; display: inline-block; border: 1px solid rgb(128 128 128 / .35); }
.stroke { flex: none; width: 20px; height: 10px; display: inline-block; }

.tabs { display: flex; flex-wrap: wrap; gap: 2px; border-bottom: 1px solid var(--gm-border); margin: 0; }
.tabs button { border: 0; border-bottom: 2px solid transparent; border-radius: 0; background: none; padding: 4px 10px; font-size: 13px; }
.tabs [aria-selected="true"] { border-bottom-color: var(--gm-accent); font-weight: 600; }
.tabs .gap { flex: 1; }
.panel { max-height: 420px; overflow: auto; }
.panel p { margin: 8px 4px; font-size: 12px; color: var(--gm-muted); }
table { border-collapse: collapse; width: 100%; font-size: 12.5px; }
th { position: sticky; top: 0; background: var(--gm-bg); text-align: start; font-weight: 400; font-size: 11px; color: var(--gm-muted); padding: 5px 8px 3px; white-space: nowrap; }
td { padding: 3px 8px; border-top: 1px solid var(--gm-border); vertical-align: middle; }
th.n, td.n { text-align: end; white-space: nowrap; width: 1%; }
.plain td.where { width: 90%; }
td.strong { font-weight: 600; }
td.where { white-space: nowrap; max-width: 340px; overflow: hidden; text-overflow: ellipsis; }
td.where .swatch { margin-inline-end: 7px; vertical-align: -1px; }
td.source { width: 52%; max-width: 0; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
td.bar { width: 130px; min-width: 118px; padding-inline-end: 12px; }
td.bar i { display: block; height: 10px; border-radius: 2px; min-width: 1px; }
tbody tr { cursor: pointer; }
tbody tr:hover, tbody tr:focus { background: var(--gm-soft); }
tbody tr[aria-selected="true"] { box-shadow: inset 3px 0 var(--gm-accent); background: var(--gm-soft); }
tbody tr:focus-visible { outline-offset: -2px; }
tfoot td { border-top: 2px solid var(--gm-border); font-weight: 600; }
td .copy { visibility: hidden; min-height: 20px; padding: 0 6px; font-size: 11px; }
tr:hover .copy, tr:focus-within .copy, tr:focus .copy { visibility: visible; }
.card { margin: 8px 0 4px; padding: 8px 12px; border: 1px solid var(--gm-border); border-inline-start: 4px solid var(--gm-accent); border-radius: 6px; font-size: 12.5px; }
.card h4 { margin: 0 0 2px; font-size: 13px; }
.card .facts { display: flex; flex-wrap: wrap; gap: 0 14px; color: var(--gm-muted); }
.card .facts b { color: var(--gm-fg); font-weight: 600; }
.stack { margin: 6px 0 0; padding: 0; list-style: none; font-family: var(--gm-code); font-size: 12px; }
.stack li { white-space: nowrap; overflow: hidden; text-overflow: ellipsis; padding: 1px 0; }
.stack li.cell { font-weight: 600; }
.stack li.folded { color: var(--gm-muted); font-style: italic; }
.stack summary { cursor: pointer; color: var(--gm-muted); font-style: italic; }
.leaks .leak { padding: 6px 4px 4px; border-bottom: 1px solid var(--gm-border); }
.leaks h4 { margin: 10px 4px 4px; font-size: 12.5px; }
.leaks .verdict { margin: 2px 4px; font-size: 13px; color: var(--gm-fg); }
.leaks .evidence { display: flex; flex-wrap: wrap; gap: 4px 10px; align-items: flex-end; }
.leaks .bars { display: inline-flex; align-items: flex-end; height: 28px; gap: 1px; border-bottom: 1px solid var(--gm-border); }
.leaks ul { margin: 4px 0 6px; padding: 0 4px; list-style: none; font-size: 12px; overflow-wrap: anywhere; }
.leaks tbody tr { cursor: default; }
.leaks td button { min-height: 22px; padding: 0 6px; font-size: 11px; }
.icicle { position: relative; margin: 8px 0; overflow: hidden; }
.gm .icicle button { position: absolute; height: 21px; min-height: 0; padding: 0 4px; border: 1px solid var(--gm-bg); border-radius: 2px; font-size: 11px; line-height: 18px;
  text-align: start; overflow: hidden; white-space: nowrap; text-overflow: ellipsis; }
.tooltip { position: absolute; z-index: ${Z.tooltip}; pointer-events: none; max-width: min(460px, 92%); padding: 7px 10px; font-size: 12px; line-height: 1.4;
  background: var(--gm-raised); color: var(--gm-fg); border: 1px solid var(--gm-border); border-radius: 7px; box-shadow: 0 4px 16px rgb(0 0 0 / .2); }
.tooltip .head { display: flex; gap: 7px; align-items: center; font-weight: 600; font-size: 13px; }
.tooltip .code { display: block; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.tooltip .stack { margin-top: 3px; }
.tooltip .grave { color: var(--gm-danger); }
.sheet { position: absolute; z-index: ${Z.sheet}; inset: 8px; overflow: auto; padding: 14px 18px; background: var(--gm-raised); border: 1px solid var(--gm-border);
  border-radius: 9px; box-shadow: 0 8px 32px rgb(0 0 0 / .3); }
.sheet h3 { margin: 0 0 8px; font-size: 15px; }
.sheet dl { display: grid; grid-template-columns: max-content 1fr max-content 1fr; gap: 3px 16px; margin: 0 0 10px; font-size: 12.5px; }
.sheet dt { white-space: nowrap; }
.sheet dd { margin: 0; }
kbd { font: 11px var(--gm-code); border: 1px solid var(--gm-border); border-bottom-width: 2px; border-radius: 4px; padding: 0 5px; background: var(--gm-bg); }
.foot summary { cursor: pointer; }
.foot { display: flex; flex-wrap: wrap; gap: 4px 16px; margin-top: 8px; font-size: 11px; color: var(--gm-muted); }
.failure { padding: 10px 12px; border: 1px solid var(--gm-danger); border-radius: 6px; color: var(--gm-danger); }
@media (prefers-reduced-motion: no-preference) {
  .gm button, .legend button { transition: background .12s; }
}
.gm.narrow .title, .gm.narrow td.bar, .gm.narrow th.bar { display: none; }
.gm.narrow { padding-inline: 6px; }
.gm.narrow .numbers > div { padding: 3px 7px 4px; min-width: 72px; }
.gm.narrow .numbers dd { font-size: 13px; }
.gm.narrow .picture { height: calc(240px + var(--gm-extra, 0px)); }
.gm.narrow .search input { width: 120px; }
.gm.narrow td, .gm.narrow th { padding-inline: 4px; }
.gm.narrow td.source { width: 60%; }
.gm.narrow td.where { max-width: 120px; width: 1%; }
.gm.narrow .plain td.where { max-width: 200px; }
.gm.narrow .legend button { max-width: 180px; }
.gm.narrow .sheet dl { grid-template-columns: 1fr; gap: 0; }
.gm.narrow .sheet dd { margin-bottom: 5px; }
td.bar.parts { white-space: nowrap; font-size: 0; } td.bar.parts i { min-width: 0; border-radius: 0; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 400px), 1fr)); gap: 4px 14px; }
.pair section { display: grid; grid-template-rows: subgrid; grid-row: span 2; gap: 0; min-width: 0; }
.pair h4 { margin: 4px 0 2px; font-size: 13px; font-weight: 500; overflow-wrap: anywhere; }
.legend .entry { display: inline-flex; gap: 6px; align-items: center; padding: 1px 7px; font-size: 12px; max-width: 340px; overflow: hidden; white-space: nowrap; }
.compare .grew { color: var(--gm-danger); } .compare .shrank { color: var(--gm-accent); }
.compare td.bar { padding-inline: 4px; background: linear-gradient(var(--gm-border), var(--gm-border)) center / 1px 100% no-repeat; }
.compare td.bar i { background: currentColor; }
.compare tbody tr { cursor: default; }
.gm .facts .fold { text-decoration: underline dotted; }
.gm .fold { border: 0; background: none; padding: 0 2px; min-height: 0; text-align: start; }
.compare .inside td { font-size: 12px; border-top: 0; }
.compare .inside td.where { padding-inline-start: 30px; white-space: normal; max-width: none; }
/* A dark notebook's own variables do not reach paper. */
.gm.paper { --gm-bg: var(--gm-own-bg); --gm-raised: var(--gm-own-raised); --gm-soft: var(--gm-own-soft); --gm-fg: var(--gm-own-fg); --gm-border: var(--gm-own-border); }
@media print {
  .gm { color-adjust: exact; print-color-adjust: exact; padding: 0; }
  .toolbar, .hint, .copy, .tooltip, .sheet, .panel p button { display: none !important; }
  .panel { max-height: none; overflow: visible; }
  .picture { resize: none; }
  .picture .overlay, .minimap canvas + canvas { opacity: 0; }
  tr, .numbers, .picture { break-inside: avoid; }
}
`;
