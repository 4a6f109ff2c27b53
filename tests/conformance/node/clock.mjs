// Time and chance, as the caller sets them.
//
// BullMQ takes every timestamp and score from Date, and the jitter of a backoff from Math.random. Both
// are replaced before anything else is imported; without a setting they are the real ones.

const RealDate = Date;
const realRandom = Math.random;

let now = null;
let chance = null;

/** The time all code of this process sees, in milliseconds; null lets the real clock run. */
export function setClock(milliseconds) {
  now = milliseconds ?? null;
}

/** What Math.random returns; null makes it random again. */
export function setRandom(value) {
  chance = value ?? null;
}

/** The real time, for waiting. */
export const realNow = () => RealDate.now();

const time = () => (now === null ? RealDate.now() : now);

globalThis.Date = new Proxy(RealDate, {
  construct: (target, args, newTarget) =>
    Reflect.construct(target, args.length === 0 ? [time()] : args, newTarget),
  apply: () => new RealDate(time()).toString(),
  get: (target, name) => (name === 'now' ? time : Reflect.get(target, name)),
});
RealDate.prototype.constructor = globalThis.Date;

Math.random = () => (chance === null ? realRandom() : chance);
