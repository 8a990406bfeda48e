// The part of uPlot's interface that the page uses.
export default class uPlot {
  constructor(options: any, data: (number | null)[][], parent: HTMLElement);
  setData(data: (number | null)[][]): void;
  setSize(size: { width: number; height: number }): void;
  destroy(): void;
}
