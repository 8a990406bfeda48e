// A worker of all pages of one browser: they share a stream. A browser keeps six connections to one place, and
// with a stream each the sixth page would leave none to ask anything by.
//
// A page asks for what is behind it and is answered once there is something, then asks on: so what a page that
// sleeps has not taken costs nothing. See `listening.js` for the page's side.

import { follow } from "./stream.js";

/** Epochs that a page can be behind another one of the same browser without reading the state anew. */
const KEPT = 2000;

/** @typedef {import("./listening.js").Asked} Asked */

/** @param {any} told an epoch */
const placeOf = (told) => ({ after: told.epoch, state_id: told.state_id });

class Stream {
  /** @param {string} token @param {{after: number, state_id: string}} place of the page that is there first */
  constructor(token, place) {
    /** @type {Set<Page>} */
    this.waiting = new Set();
    /** @type {any[]} the newest epochs, the oldest first */
    this.told = [];
    /** Where what was told begins, and where it ends. */
    this.base = this.place = place;
    /** @type {any} the newest that was said of the console's services */
    this.looked = null;
    /** How the stream stands. */
    this.trouble = "";
    this.status = 0;
    /** They count up: of hellos, of looks, of how the stream stands. */
    this.hellos = 0;
    this.looks = 0;
    this.stands = 0;
    this.ended = follow(token, () => this.place, (name, data) => this.take(name, data), (trouble, status) => {
      this.trouble = trouble;
      this.status = status;
      this.stands += 1;
      this.answer();
    });
  }

  /** @param {string} name @param {any} data */
  take(name, data) {
    if (name === "looked") {
      this.looked = data;
      this.looks += 1;
    } else if (name === "hello") {
      this.hellos += 1;
      if (data.how !== "resumed") {
        this.told = [];
        this.base = this.place = { after: data.epoch, state_id: data.state_id };
      }
    } else if (name === "epoch" && data.epoch === this.place.after + 1) {
      this.told.push(data);
      if (this.told.length > KEPT) this.base = placeOf(this.told.shift());
      this.place = placeOf(data);
    }
    this.answer();
  }

  answer() {
    for (const page of [...this.waiting]) if (page.answer(this)) this.waiting.delete(page);
  }

  /** Whether a page's place is in this history, and all behind it is here. @param {{after: number, state_id: string}} place */
  has(place) {
    const known = [this.base, ...this.told.map(placeOf)];
    return known.some((each) => each.after === place.after && each.state_id === place.state_id);
  }
}

/** One page, and what it has been told. */
class Page {
  /** @param {MessagePort} port */
  constructor(port) {
    this.port = port;
    /** @type {Stream | null} */
    this.stream = null;
    this.place = { after: 0, state_id: "" };
    this.hellos = 0;
    this.looks = 0;
    this.stands = 0;
  }

  /** @param {Stream} stream */
  follow(stream) {
    if (this.stream === stream) return;
    this.stream = stream;
    this.hellos = this.looks = this.stands = 0;
  }

  /** Tell it what it does not know; whether there was anything. @param {Stream} stream */
  answer(stream) {
    /** @type {[string, any][]} */
    const news = [];
    if (this.hellos !== stream.hellos) {
      const how = !this.place.after ? "begun" : stream.has(this.place) ? "resumed" : "anew";
      news.push(this.hello(stream, how));
    }
    if (stream.hellos && this.place.after < stream.place.after) {
      const behind = stream.told.filter((each) => each.epoch > this.place.after);
      if (behind[0]?.epoch === this.place.after + 1) news.push(...behind.map((each) => /** @type {[string, any]} */ (["epoch", each])));
      else news.push(this.hello(stream, "anew"));
      this.place = stream.place;
    }
    if (this.looks !== stream.looks) news.push(["looked", stream.looked]);
    const stands = this.stands === stream.stands ? null : { trouble: stream.trouble, status: stream.status };
    this.looks = stream.looks;
    this.stands = stream.stands;
    if (!news.length && !stands) return false;
    this.port.postMessage({ news, stands });
    return true;
  }

  /** @param {Stream} stream @param {string} how @returns {[string, any]} */
  hello(stream, how) {
    this.hellos = stream.hellos;
    if (how !== "resumed") this.place = stream.place;
    return ["hello", { how, epoch: stream.place.after, state_id: stream.place.state_id }];
  }
}

/** By token: who has another one is told nothing of what this one may see. @type {Map<string, Stream>} */
const streams = new Map();

/** @param {Page} page @param {Asked} asked */
function ask(page, { token, after, state_id }) {
  page.place = { after, state_id };
  let stream = streams.get(token);
  if (!stream) {
    stream = new Stream(token, page.place);
    streams.set(token, stream);
    stream.ended.then(() => streams.delete(token));
  }
  page.follow(stream);
  if (!page.answer(stream)) stream.waiting.add(page);
}

/** @type {any} */ (self).onconnect = (/** @type {MessageEvent} */ event) => {
  const page = new Page(event.ports[0]);
  page.port.onmessage = ({ data }) => ask(page, data);
};
