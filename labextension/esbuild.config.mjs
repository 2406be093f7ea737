// Bundles the view for the two places outside the JupyterLab extension: the notebook widget and the standalone HTML.
// Everything is inlined: neither file loads anything at run time.
import { build } from 'esbuild';

const minify = process.argv.includes('--minify');

const shared = {
  bundle: true,
  charset: 'utf8',
  legalComments: 'none',
  logLevel: 'warning',
  minify,
  // Chrome 111, Firefox 113 and Safari 16.4 have DecompressionStream and everything else that the view uses.
  target: ['es2022'],
  sourcemap: minify ? false : 'inline'
};

await Promise.all([
  build({ ...shared, entryPoints: ['src/widget.ts'], format: 'esm', outfile: '../gpumem_magic/static/widget.js' }),
  build({ ...shared, entryPoints: ['src/report.ts'], format: 'iife', outfile: '../gpumem_magic/static/report.js' })
]);
