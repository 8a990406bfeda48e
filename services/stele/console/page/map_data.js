// A map as the console packs it: see packed_map.py for the format.

export const AT_REST = 0;
export const MOVING = 1;
export const NOBODY = 2;

/**
 * @typedef {object} MapData
 * @property {string} placement
 * @property {number} epoch
 * @property {number} rows
 * @property {number} width replicas a row at most
 * @property {string[]} nodes by number
 * @property {boolean} even
 * @property {Float32Array | null} starts
 * @property {Int16Array} replicas `width` columns of `rows` numbers
 * @property {Uint8Array} reads
 * @property {Uint8Array} state
 * @property {Int32Array} version
 * @property {Uint8Array | null} differs
 */

/** @param {ArrayBuffer} buffer @returns {MapData} */
export function unpack(buffer) {
  const view = new DataView(buffer);
  if (view.getUint32(0, false) !== 0x53544d31) throw new Error("This is no map.");
  const length = view.getUint32(4, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
  /** @type {Record<string, any>} */
  const columns = {};
  const kinds = { f4: Float32Array, i2: Int16Array, u1: Uint8Array, i4: Int32Array };
  let at = 8 + length;
  for (const [name, kind, count] of head.columns) {
    const Kind = kinds[/** @type {keyof typeof kinds} */ (kind)];
    columns[name] = new Kind(buffer, at, count);
    at += Math.ceil((count * Kind.BYTES_PER_ELEMENT) / 8) * 8;
  }
  return {
    placement: head.placement,
    epoch: head.epoch,
    rows: head.rows,
    width: head.width,
    nodes: head.nodes,
    even: head.even,
    starts: columns.starts ?? null,
    replicas: columns.replicas,
    reads: columns.reads,
    state: columns.state,
    version: columns.version,
    differs: columns.differs ?? null,
  };
}

/**
 * Write changed rows into the map; false when it must be read anew.
 * @param {MapData} map
 * @param {[number, number, number, number, number[]][]} rows
 */
export function change(map, rows) {
  for (const [place, state, reads, version, numbers] of rows) {
    if (place >= map.rows || numbers.length > map.width || numbers.some((n) => n >= map.nodes.length)) return false;
    map.state[place] = state;
    map.reads[place] = reads;
    map.version[place] = version;
    for (let column = 0; column < map.width; column++) {
      map.replicas[column * map.rows + place] = column < numbers.length ? numbers[column] : -1;
    }
  }
  return true;
}

/** The nodes of a row, by number. @param {MapData} map @param {number} place */
export function nodesOf(map, place) {
  const found = [];
  for (let column = 0; column < map.width; column++) {
    const number = map.replicas[column * map.rows + place];
    if (number >= 0) found.push(number);
  }
  return found;
}

/** Where a row begins, 0 to 1 of the ring. @param {MapData} map @param {number} place */
export function startOf(map, place) {
  if (place >= map.rows) return 1;
  return map.starts ? map.starts[place] : place / map.rows;
}

/** Which row holds this part of the ring. @param {MapData} map @param {number} part */
export function rowAt(map, part) {
  if (!map.starts) return Math.min(map.rows - 1, Math.floor(part * map.rows));
  let low = 0;
  let high = map.rows - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (map.starts[middle] <= part) low = middle;
    else high = middle - 1;
  }
  return low;
}
