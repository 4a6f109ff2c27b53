// A place: one database of a server (or a cluster), with the BullMQ objects that work there.

import { readFileSync } from 'node:fs';
import { FlowProducer, Job, Queue, Worker } from 'bullmq';
import { Cluster, Redis } from 'ioredis';
import { setClock, setRandom } from './clock.mjs';

const [AGE, WIPE] = ['age', 'wipe'].map((name) =>
  readFileSync(new URL(`../lua/${name}.lua`, import.meta.url), 'utf8'),
);
const STEP = 10_000; // the length of a step of age.lua; the same number is in ../store.py
const LISTS = new Set(['wait', 'paused', 'active']);

export class Place {
  constructor(client, prefix) {
    this.client = client;
    this.prefix = prefix;
    this.now = null;
    this.chance = null;
    this.held = new Map(); // token -> the job it activated last: {id, raw}
    this.fleet = new Map(); // the workers and listeners that run by themselves
    this.queues = new Map();
    this.workers = new Map();
    this.flowProducer = null;
  }

  static async open({ host, port, db = 0, nodes = null, prefix = 'bull' }) {
    const redisOptions = { maxRetriesPerRequest: null };
    const client = nodes
      ? new Cluster(nodes.map(([host, port]) => ({ host, port })), { redisOptions, lazyConnect: true })
      : new Redis({ host, port, db, ...redisOptions, lazyConnect: true });
    client.on('error', (error) => console.error(`redis: ${error.message}`));
    try {
      await client.connect();
    } catch (error) {
      client.disconnect(); // or it would try for ever
      throw error;
    }
    return new Place(client, prefix);
  }

  /** Let this place's clock and chance be the ones that everything sees from here on. */
  enter() {
    setClock(this.now);
    setRandom(this.chance);
  }

  get options() {
    return { connection: this.client, prefix: this.prefix };
  }

  key(queue, suffix) {
    return `${this.prefix}:${queue}:${suffix}`;
  }

  queue(name, options = {}) {
    let queue = this.queues.get(name);
    if (!queue) {
      queue = new Queue(name, { ...this.options, ...options });
      queue.on('error', (error) => console.error(`queue ${name}: ${error.message}`));
      this.queues.set(name, queue);
    }
    return queue;
  }

  get flow() {
    this.flowProducer ??= new FlowProducer(this.options);
    return this.flowProducer;
  }

  /** A worker that does only what it is told. It notes the errors it emits, and the jobs it makes. */
  async worker(queue, options = {}) {
    const name = JSON.stringify([queue, options]);
    let worker = this.workers.get(name);
    if (!worker) {
      worker = new Worker(queue, null, { ...this.options, ...workerOptions(options) });
      worker.problems = [];
      worker.on('error', (error) => worker.problems.push(error));
      const { createJob } = worker;
      worker.createJob = function (raw, id) {
        worker.made = { id, raw };
        return createJob.call(this, raw, id);
      };
      this.workers.set(name, worker);
      await worker.waitUntilReady();
    }
    // Each operation is a worker's first: what it remembers of a limit would keep it from asking.
    worker.limitUntil = 0;
    worker.blockUntil = 0;
    worker.drained = false;
    worker.problems.length = 0;
    return worker;
  }

  // ---------------------------------------------------------------- which job is meant

  /** The id that a reference means now: {id}, {held: token} or {at: [state, …], index}; null when none. */
  async resolve(queue, reference) {
    if (typeof reference === 'string') return reference;
    if ('id' in reference) return reference.id;
    if ('held' in reference) return this.held.get(reference.held)?.id ?? null;
    const { at, index = 0 } = reference;
    for (const state of at) {
      const key = this.key(queue, state);
      const id = LISTS.has(state)
        ? await this.client.lindex(key, index)
        : (await this.client.zrange(key, index, index))[0] ?? null;
      if (id !== null) return id;
    }
    return null;
  }

  /** A job to administer, as it is stored; one that is missing can still be asked for, in vain. */
  async job(queue, id) {
    const owner = this.queue(queue);
    return (await owner.getJob(id)) ?? new Job(owner, 'missing', {}, {}, id);
  }

  /** A job to work on: as it was when the token activated it, else as it is stored. */
  async jobOfWorker(worker, reference, id, token) {
    const held = this.held.get(reference.held ?? token);
    const raw = held?.id === id ? held.raw : await this.client.hgetall(worker.toKey(id));
    const job = Object.keys(raw).length
      ? Job.fromJSON(worker, raw, id)
      : new Job(worker, 'missing', {}, {}, id);
    job.token = token;
    return job;
  }

  // ---------------------------------------------------------------- time, and a new start

  /** Move the clock. Keys grow older with it, in steps: whole ones that it passes. */
  async advance(milliseconds) {
    const steps = Math.floor((this.now + milliseconds) / STEP) - Math.floor(this.now / STEP);
    this.now += milliseconds;
    this.enter();
    if (steps > 0) await this.everywhere(AGE, steps, STEP);
    return this.now;
  }

  /** No keys, a new clock, and new queues, which write their meta key. */
  async reset({ now = null, random = null, queues = [], queueOptions = {} }) {
    await this.letGo();
    await this.everywhere(WIPE);
    this.held.clear();
    this.now = now;
    this.chance = random;
    this.enter();
    for (const name of queues) await this.queue(name, queueOptions).waitUntilReady();
  }

  /** Run a script of the rig on every server, for the keys below the prefix. */
  async everywhere(script, ...args) {
    const nodes = this.client.isCluster ? this.client.nodes('master') : [this.client];
    await Promise.all(nodes.map((node) => node.eval(script, 0, `${glob(this.prefix)}:*`, ...args)));
  }

  async letGo() {
    await Promise.all([...this.queues.values()].map((queue) => queue.close()));
    this.queues.clear();
  }

  async close() {
    for (const member of [...this.fleet.values()]) await member.stop();
    await this.letGo();
    await this.flowProducer?.close();
    await Promise.all([...this.workers.values()].map((worker) => worker.close(true)));
    this.workers.clear();
    this.client.disconnect();
  }
}

/** Worker options as BullMQ takes them; customBackoff stands for a function: n times that, -1 gives up. */
export function workerOptions({ customBackoff, ...options }) {
  if (customBackoff === undefined) return options;
  const backoffStrategy = (attempt) => (customBackoff < 0 ? customBackoff : attempt * customBackoff);
  return { ...options, settings: { backoffStrategy } };
}

const glob = (text) => text.replace(/[\\*?[\]]/g, '\\$&');
