/** Names of the panel's commands. Those that take a kernel are offered in the panel's menus only. */
export const Command = {
  open: 'gpumem-magic:open',
  openNotebook: 'gpumem-magic:open-notebook',
  interrupt: 'gpumem-magic:interrupt-kernel',
  restart: 'gpumem-magic:restart-kernel',
  shutdown: 'gpumem-magic:shutdown-kernel',
  copy: 'gpumem-magic:copy',
  exportCsv: 'gpumem-magic:export-history',
  exportHtml: 'gpumem-magic:export-report',
  range: 'gpumem-magic:show-history',
  settings: 'gpumem-magic:settings'
} as const;
