export default { render: (): void => undefined };
