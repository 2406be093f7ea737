// Bundles the view for the two places outside the JupyterLab extension: the notebook widget and the standalone HTML.
// Everything is inlined: neither file loads anything at run time. What went in is written to lib/*.meta.json, from which
// hatch_build.py collects the licences. The extension's own modules are only translated, into lib/, for JupyterLab's
// builder. Types are checked by `jlpm lint`: an installation need not wait for that.
import { mkdir, readdir, writeFile } from 'node:fs/promises';
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

async function translate() {
  const names = await readdir('src', { recursive: true });
  const sources = names.filter(
    name => name.endsWith('.ts') && !name.endsWith('.test.ts') && !name.startsWith('testing')
  );
  const entryPoints = sources.map(name => `src/${name}`);
  await build({ entryPoints, outbase: 'src', outdir: 'lib', format: 'esm', charset: 'utf8', target: shared.target });
}

await Promise.all([bundle('widget', 'esm'), bundle('report', 'iife'), translate()]);
