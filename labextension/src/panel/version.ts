/** This front end's version; a test keeps it equal to package.json's, which the build cannot import from `src`. */
export const VERSION = '0.1.0';
