import { LabIcon } from '@jupyterlab/ui-components';

/** A memory module on its side, partly filled. */
export const gpuMemoryIcon = new LabIcon({
  name: 'gpumem-magic:memory',
  svgstr: `<svg xmlns="http://www.w3.org/2000/svg" width="16" viewBox="0 0 24 24">
  <g class="jp-icon3" fill="#616161">
    <path fill-rule="evenodd" d="M3 5h18a1 1 0 0 1 1 1v11a1 1 0 0 1-1 1h-2v2h-2v-2h-2v2h-2v-2h-2v2H9v-2H7v2H5v-2H3a1 1 0 0 1-1-1V6a1 1 0 0 1 1-1Zm1 2v9h16V7H4Z"/>
    <path d="M6 9h3v5H6zM10.500 9h3v5h-3z"/>
    <path d="M15 9h3v5h-3z" opacity=".35"/>
  </g>
</svg>`
});
