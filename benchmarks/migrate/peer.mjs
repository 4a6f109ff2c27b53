// The usual way to move jobs with BullMQ: for each id, look whether it was copied, read it, add it to the new
// queue, note that it was copied. Prints how many jobs a second that were.
//
//   node peer.mjs <folder with node_modules> <host> <port> <old queue> <new queue>

import { createRequire } from 'node:module';

const [folder, host, port, from, to] = process.argv.slice(2);
const require = createRequire(`${folder}/package.json`);
const { Queue } = require('bullmq');
const { Redis } = require('ioredis');

const client = new Redis({ host, port: Number(port), maxRetriesPerRequest: null });
const queue = new Queue(to, { connection: client });
await queue.waitUntilReady();
const ids = (await client.lrange(`bull:${from}:wait`, 0, -1)).reverse();
const started = performance.now();
for (const id of ids) {
  if (await client.sismember('migration:copied', `${from}:${id}`)) continue;
  const { name, data, opts } = await client.hgetall(`bull:${from}:${id}`);
  await queue.add(name, JSON.parse(data), JSON.parse(opts));
  await client.sadd('migration:copied', `${from}:${id}`);
}
console.log((ids.length / (performance.now() - started)) * 1000);
await queue.close();
client.disconnect();
