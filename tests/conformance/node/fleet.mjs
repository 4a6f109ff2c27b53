// Workers and listeners that run by themselves, for tests of mixed fleets. They live in real time.

import { DelayedError, QueueEvents, RateLimitError, UnrecoverableError, Worker } from 'bullmq';
import { realNow } from './clock.mjs';
import { workerOptions } from './place.mjs';
import { errorView } from './view.mjs';

const WORKER_EVENTS = ['active', 'completed', 'failed', 'progress', 'stalled', 'drained', 'error'];
const QUEUE_EVENTS = [
  'added', 'waiting', 'waiting-children', 'delayed', 'active', 'progress', 'completed', 'failed',
  'retries-exhausted', 'stalled', 'drained', 'duplicated', 'debounced', 'deduplicated', 'removed',
  'cleaned', 'paused', 'resumed',
];

/** What happened, in order, and a way to wait for it. */
class Journal {
  entries = [];
  waiting = new Set();

  note(entry) {
    this.entries.push(entry);
    for (const look of [...this.waiting]) look();
  }

  /** Resolve when there are `count` entries of an event (of one job); false when time is up. */
  until({ event, count = 1, job = null, timeout = 10_000 }) {
    const enough = () =>
      this.entries.filter((e) => e.event === event && (job === null || e.job === job)).length >= count;
    return new Promise((resolve) => {
      const end = (found) => {
        clearTimeout(timer);
        this.waiting.delete(look);
        resolve(found);
      };
      const look = () => enough() && end(true);
      const timer = setTimeout(() => end(false), timeout);
      this.waiting.add(look);
      look();
    });
  }
}

// ------------------------------------------------------------------ processors

/** Gates: jobs wait here until they are told to go on. */
class Gates {
  open = new Set();
  waiting = new Map();

  pass(id) {
    if (this.open.has('*') || this.open.delete(id)) return undefined;
    return new Promise((resolve) => this.waiting.set(id, resolve));
  }

  release(id) {
    if (id !== null) {
      const resolve = this.waiting.get(id);
      this.waiting.delete(id);
      return resolve ? resolve() : void this.open.add(id);
    }
    this.open.add('*');
    for (const resolve of this.waiting.values()) resolve();
    this.waiting.clear();
  }
}

/** Scripted processors; `fromData` takes the script from each job's own data.script. */
const processors = {
  ok: ({ value = 'ok' }) => value,
  echo: (script, job) => job.data,
  fail: ({ message = 'failed', unrecoverable = false }) => {
    throw unrecoverable ? new UnrecoverableError(message) : new Error(message);
  },
  failTimes: ({ times, message = 'not yet', value = 'ok' }, job) => {
    if (job.attemptsMade < times) throw new Error(message);
    return value;
  },
  report: async ({ steps = 2, value = 'ok' }, job) => {
    for (let step = 1; step <= steps; step++) {
      await job.updateProgress({ step, of: steps });
      await job.log(`step ${step}`);
    }
    return value;
  },
  rateLimit: async ({ ms, times = 1, value = 'ok' }, job, token, member) => {
    if (member.count(job.id) > times) return value;
    await member.worker.rateLimit(ms);
    throw new RateLimitError();
  },
  delay: async ({ ms, times = 1, value = 'ok' }, job, token, member) => {
    if (member.count(job.id) > times) return value;
    await job.moveToDelayed(Date.now() + ms, token);
    throw new DelayedError();
  },
  gate: async ({ value = 'ok' }, job, token, member) => {
    await member.gates.pass(job.id);
    return value;
  },
};

function process(script, job, token, member) {
  const own = script.kind === 'fromData' ? job.data.script : script;
  if (!(own.kind in processors)) throw new Error(`there is no processor ${own.kind}`);
  return processors[own.kind](own, job, token, member);
}

// ------------------------------------------------------------------ members

class WorkerMember {
  constructor(place, { queue, processor, worker: options = {} }) {
    this.journal = new Journal();
    this.gates = new Gates();
    this.runs = new Map();
    const run = (job, token) => {
      this.runs.set(job.id, this.count(job.id) + 1);
      this.journal.note({ event: 'run', job: job.id, attempt: job.attemptsStarted, at: realNow() });
      return process(processor, job, token, this);
    };
    this.worker = new Worker(queue, run, { ...place.options, ...workerOptions(options) });
    for (const event of WORKER_EVENTS) this.worker.on(event, (...args) => this.note(event, args));
  }

  count(id) {
    return this.runs.get(id) ?? 0;
  }

  note(event, [first, second]) {
    const seen = { event, at: realNow() };
    if (event === 'error') seen.error = errorView(first);
    else if (event === 'stalled') seen.job = first;
    else if (first) seen.job = first.id;
    if (event === 'completed' || event === 'progress') seen.value = second;
    if (event === 'failed') seen.error = errorView(second);
    this.journal.note(seen);
  }

  ready() {
    return this.worker.waitUntilReady();
  }

  async stop(force = true) {
    this.gates.release(null);
    await this.worker.close(force);
  }
}

class ListenerMember {
  constructor(place, { queue, from = '$' }) {
    this.journal = new Journal();
    this.events = new QueueEvents(queue, { ...place.options, lastEventId: from });
    this.events.on('error', (error) => this.journal.note({ event: 'error', error: errorView(error) }));
    for (const event of QUEUE_EVENTS) this.events.on(event, (args) => this.note(event, args));
  }

  note(event, args) {
    if (typeof args !== 'object') return this.journal.note({ event });
    const { jobId, ...others } = args;
    this.journal.note(jobId === undefined ? { event, ...others } : { event, job: jobId, ...others });
  }

  ready() {
    return this.events.waitUntilReady();
  }

  stop() {
    return this.events.close();
  }
}

function member(place, name) {
  const found = place.fleet.get(name);
  if (!found) throw new Error(`there is no worker or listener ${name}`);
  return found;
}

async function start(place, name, made) {
  if (place.fleet.has(name)) throw new Error(`${name} runs already`);
  place.fleet.set(name, made);
  await made.ready();
}

async function stop(place, { name, force = false }) {
  const found = member(place, name);
  await found.stop(force);
  place.fleet.delete(name);
  return found.journal.entries;
}

/** Operations of the fleet: `name` is the caller's name for a member. */
export const fleetOperations = {
  startWorker: (place, operation) => start(place, operation.name, new WorkerMember(place, operation)),
  startListener: (place, operation) => start(place, operation.name, new ListenerMember(place, operation)),
  stop,
  release: (place, { name, job = null }) => member(place, name).gates.release(job),
  seen: (place, { name }) => member(place, name).journal.entries,
  pauseWorker: (place, { name, doNotWait = false }) => member(place, name).worker.pause(doNotWait),
  resumeWorker: (place, { name }) => member(place, name).worker.resume(),
  until: (place, { name, ...what }) => member(place, name).journal.until(what),
};

/** Operations that wait for what others do, and so must not stand in their way. */
export const WAITING = new Set(['until', 'stop', 'pauseWorker']);
