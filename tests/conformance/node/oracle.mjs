// BullMQ 5.62.0 behind JSON lines on standard input and output. See ../README.md.
//
//   {"id": 7, "place": "a", "op": "add", "queue": "q", "name": "n", "data": {}}
//   {"id": 7, "ok": "1"}   or   {"id": 7, "error": {"name": "Error", "message": "...", "code": -1}}
//
// Requests are done one after the other, and may be sent ahead. Only those that wait for others (see
// fleet.mjs) are overtaken. The process ends when its input does.

import { setClock } from './clock.mjs'; // first: it replaces Date before anyone takes hold of it
import { createInterface } from 'node:readline';
import { WAITING, fleetOperations } from './fleet.mjs';
import { Place } from './place.mjs';
import { execute, executeAll } from './state.mjs';
import { errorView } from './view.mjs';

console.log = console.warn = console.info = console.error; // standard output belongs to the answers

const places = new Map();

const operations = {
  open: async ({ place: name, ...where }) => {
    if (places.has(name)) throw new Error(`place ${name} is open already`);
    places.set(name, await Place.open(where));
  },
  close: async ({ place: name }) => {
    const place = find(name);
    places.delete(name);
    await place.close();
  },
  sequence: ({ place, operations }) => executeAll(find(place), operations),
};

function find(name) {
  const place = places.get(name);
  if (!place) throw new Error(`there is no place ${name}: open it first`);
  return place;
}

async function handle(request) {
  const { op, place } = request;
  if (op in operations) return operations[op](request);
  if (op in fleetOperations) return fleetOperations[op](find(place), request);
  return execute(find(place), request);
}

async function answer(request) {
  let said;
  try {
    said = { id: request.id, ok: (await handle(request)) ?? null };
  } catch (error) {
    said = { id: request.id, error: errorView(error) };
  }
  process.stdout.write(`${JSON.stringify(said)}\n`);
}

async function closeAll() {
  setClock(null);
  await Promise.allSettled([...places.values()].map((place) => place.close()));
}

process.on('unhandledRejection', (reason) => console.error('unhandled:', reason));

let last = Promise.resolve();
const lines = createInterface({ input: process.stdin, crlfDelay: Infinity });
lines.on('line', (line) => {
  const request = JSON.parse(line);
  if (WAITING.has(request.op)) last.then(() => answer(request));
  else last = last.then(() => answer(request));
});
lines.on('close', async () => {
  setTimeout(() => process.exit(1), 5000).unref(); // a server that does not answer must not keep it
  await last;
  await closeAll();
  process.exit(0);
});
