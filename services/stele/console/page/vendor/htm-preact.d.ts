export const html: (strings: TemplateStringsArray, ...values: any[]) => any;
export const render: (tree: any, parent: Element) => void;
export const useEffect: (effect: () => void | (() => void), inputs?: any[]) => void;
export const useErrorBoundary: (told?: (error: any) => void) => [any, () => void];
export const useRef: (initial: any) => { current: any };
export const useState: <T>(initial: T | (() => T)) => [T, (next: any) => void];
