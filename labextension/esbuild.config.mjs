// Bundles the view for the two places outside the JupyterLab extension: the notebook widget and the standalone HTML.
// Everything is inlined: neither file loads anything at run time. What went in is written to lib/*.meta.json, from which
// hatch_build.py collects the licences.
import { mkdir, writeFile } from 'node:fs/promises';
import { build } from 'esbuild';

const minify = process.argv.includes('--minify');

const shared = {
  bundle: true,
  charset: 'utf8',
  legalComments: 'none',
  logLevel: 'warning',
  metafile: true,
  minify,
  // Chrome 111, Firefox 113 and Safari 16.4 have DecompressionStream and everything else that the view uses.
  target: ['es2022'],
  sourcemap: minify ? false : 'inline'
};

async function bundle(name, format) {
  const outfile = `../gpumem_magic/static/${name}.js`;
  const { metafile } = await build({ ...shared, entryPoints: [`src/${name}.ts`], format, outfile });
  await mkdir('lib', { recursive: true });
  await writeFile(`lib/${name}.meta.json`, JSON.stringify(metafile));
}

await Promise.all([bundle('widget', 'esm'), bundle('report', 'iife')]);
