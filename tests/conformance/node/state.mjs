// Operations at the level of state: each is one call of BullMQ, and nothing happens by itself.

import { RateLimitError, UnrecoverableError } from 'bullmq';
import { errorView, flowView, jobView } from './view.mjs';

const NOTHING = { nothing: true }; // the reference meant no job

// ------------------------------------------------------------------ the queue

const queueOperations = {
  add: async (queue, { name, data, opts }) => (await queue.add(name, data, opts)).id,
  addBulk: async (queue, { jobs }) => (await queue.addBulk(jobs)).map((job) => job.id),
  pause: (queue) => queue.pause(),
  resume: (queue) => queue.resume(),
  drain: (queue, { delayed }) => queue.drain(delayed),
  clean: (queue, { grace, limit, type }) => queue.clean(grace, limit, type),
  obliterate: (queue, { force, count }) => queue.obliterate(given({ force, count })),
  retryJobs: (queue, { state, count, timestamp }) => queue.retryJobs(given({ state, count, timestamp })),
  promoteJobs: (queue, { count }) => queue.promoteJobs(given({ count })),
  setGlobalConcurrency: (queue, { concurrency }) => queue.setGlobalConcurrency(concurrency),
  removeGlobalConcurrency: (queue) => queue.removeGlobalConcurrency(),
  getGlobalConcurrency: (queue) => queue.getGlobalConcurrency(),
  setGlobalRateLimit: (queue, { max, duration }) => queue.setGlobalRateLimit(max, duration),
  removeGlobalRateLimit: (queue) => queue.removeGlobalRateLimit(),
  getGlobalRateLimit: (queue) => queue.getGlobalRateLimit(),
  rateLimit: (queue, { ms }) => queue.rateLimit(ms),
  removeRateLimitKey: (queue) => queue.removeRateLimitKey(),
  getRateLimitTtl: async (queue, { max }) => ({ ttl: await queue.getRateLimitTtl(max) }),
  getJobCounts: (queue, { types = [] }) => queue.getJobCounts(...types),
  getRanges: (queue, { types, start, end, asc }) => queue.getRanges(types, start, end, asc),
  getJobs: async (queue, { types, start, end, asc }) =>
    (await queue.getJobs(types, start, end, asc)).map(jobView),
  getCountsPerPriority: (queue, { priorities }) => queue.getCountsPerPriority(priorities),
  getMetrics: (queue, { type, start, end }) => queue.getMetrics(type, start, end),
  isMaxed: (queue) => queue.isMaxed(),
  isPaused: (queue) => queue.isPaused(),
  getWorkers: async (queue) => (await queue.getWorkers()).map(({ rawname }) => rawname).sort(),
  getVersion: (queue) => queue.getVersion(),
  trimEvents: (queue, { maxLength }) => queue.trimEvents(maxLength),
  getDeduplicationJobId: (queue, { deduplicationId }) => queue.getDeduplicationJobId(deduplicationId),
  removeDeduplicationKey: (queue, { deduplicationId }) => queue.removeDeduplicationKey(deduplicationId),
  upsertJobScheduler: async (queue, { scheduler, repeat, template }) => {
    const job = await queue.upsertJobScheduler(scheduler, repeat, template);
    return job ? { id: job.id, delay: job.delay } : null;
  },
  removeJobScheduler: (queue, { scheduler }) => queue.removeJobScheduler(scheduler),
  getJobScheduler: (queue, { scheduler }) => queue.getJobScheduler(scheduler),
  getJobSchedulers: (queue, { start, end, asc }) => queue.getJobSchedulers(start, end, asc),
  getJobSchedulersCount: (queue) => queue.getJobSchedulersCount(),
};

// ------------------------------------------------------------------ one job, by an administrator

const jobOperations = {
  getJob: async (job, { queue }, id) => jobView(await queue.getJob(id)),
  getJobState: (job, { queue }, id) => queue.getJobState(id),
  getJobLogs: (job, { queue, start, end, asc }, id) => queue.getJobLogs(id, start, end, asc),
  remove: (job, { queue, removeChildren }, id) => queue.remove(id, given({ removeChildren })),
  removeJob: (job, { removeChildren }) => job.remove(given({ removeChildren })),
  retry: (job, { state }) => job.retry(state),
  promote: (job) => job.promote(),
  changeDelay: (job, { delay }) => job.changeDelay(delay),
  changePriority: (job, { priority, lifo }) => job.changePriority(given({ priority, lifo })),
  updateData: (job, { data }) => job.updateData(data),
  updateProgress: (job, { progress }) => job.updateProgress(progress),
  log: (job, { row }) => job.log(row),
  clearLogs: (job, { keep }) => job.clearLogs(keep),
  getDependencies: (job, { opts }) => job.getDependencies(opts),
  getDependenciesCount: (job, { opts }) => job.getDependenciesCount(opts),
  getChildrenValues: (job) => job.getChildrenValues(),
  getIgnoredChildrenFailures: (job) => job.getIgnoredChildrenFailures(),
  removeChildDependency: (job) => job.removeChildDependency(),
  removeUnprocessedChildren: (job) => job.removeUnprocessedChildren(),
  loseLock: (job, { place, queue }, id) => place.client.del(`${queue.toKey(id)}:lock`),
};

// ------------------------------------------------------------------ a job that a worker has

const workerOperations = {
  complete: (worker, job, { token, value, fetchNext }) =>
    worker.handleCompleted(value, job, token, () => fetchNext, new Set(), null),
  fail: (worker, job, { token, error, fetchNext }) =>
    worker.handleFailed(thrown(error), job, token, () => fetchNext, new Set(), null),
  process: (worker, job, { token, outcome, fetchNext }) => {
    worker.processFn = async () => {
      if (outcome.error) throw thrown(outcome.error);
      return outcome.value;
    };
    return worker.processJob(job, token, () => fetchNext, new Set());
  },
};

const lockOperations = {
  moveToDelayed: (job, { token, timestamp }) => job.moveToDelayed(timestamp, token),
  moveToWait: async (job, { token }) => ({ ttl: await job.moveToWait(token) }),
  moveToWaitingChildren: (job, { token, child }) => job.moveToWaitingChildren(token, given({ child })),
  extendLock: (job, { token, duration }) => job.extendLock(token, duration),
};

async function fetchJob(place, { queue, token, worker: options }) {
  const worker = await place.worker(queue, options);
  return nextView(place, worker, await worker.getNextJob(token, { block: false }), token);
}

async function work(place, name, operation) {
  const { queue, job: reference, token, worker: options } = operation;
  const id = await place.resolve(queue, reference);
  if (id === null) return NOTHING;
  const worker = await place.worker(queue, options);
  const job = await place.jobOfWorker(worker, reference, id, token);
  if (name in lockOperations) return lockOperations[name](job, operation);
  return nextView(place, worker, await workerOperations[name](worker, job, operation), token);
}

/** What a worker knows after it asked for a job, alone or while it finished another. */
function nextView(place, worker, job, token) {
  if (job) place.held.set(token, { ...worker.made });
  return {
    job: jobView(job),
    limitedFor: Math.max(worker.limitUntil - Date.now(), 0),
    nextDelayed: worker.blockUntil,
    ...(worker.problems.length && { problems: worker.problems.map(errorView) }),
  };
}

/** An error as a processor would throw it, with the stack the caller wants to find again. */
function thrown({ message, name, stack, kind }) {
  const error =
    kind === 'unrecoverable' ? new UnrecoverableError(message)
    : kind === 'rateLimit' ? new RateLimitError()
    : new Error(message);
  if (name !== undefined) error.name = name;
  if (stack !== undefined) error.stack = stack;
  return error;
}

// ------------------------------------------------------------------ everything by its name

const placeOperations = {
  clock: (place, { now }) => {
    place.now = now;
    place.enter();
  },
  random: (place, { value }) => {
    place.chance = value;
    place.enter();
  },
  advance: (place, { ms }) => place.advance(ms),
  reset: (place, operation) => place.reset(operation),
  redis: (place, { command: [name, ...args] }) => place.client.call(name, ...args),
  fetch: fetchJob,
  sweep: async (place, { queue, worker: options }) =>
    (await place.worker(queue, options)).scripts.moveStalledJobsToWait(),
  extendLocks: async (place, { queue, locks, worker: options }) => {
    const worker = await place.worker(queue, options);
    const ids = await Promise.all(locks.map(([reference]) => place.resolve(queue, reference)));
    const known = locks.map(([, token], i) => [ids[i], token]).filter(([id]) => id !== null);
    if (!known.length) return NOTHING;
    const [names, tokens] = [known.map(([id]) => id), known.map(([, token]) => token)];
    return worker.scripts.extendLocks(names, tokens, worker.opts.lockDuration);
  },
  addFlow: async (place, { flow }) => flowView(await place.flow.add(flow)),
};

/** Do one operation; its result, as JSON can carry it. */
export async function execute(place, operation) {
  const { op } = operation;
  place.enter();
  if (op in placeOperations) return placeOperations[op](place, operation);
  if (op in workerOperations || op in lockOperations) return work(place, op, operation);
  if (op in queueOperations) return queueOperations[op](place.queue(operation.queue), operation);
  if (op in jobOperations) {
    const id = await place.resolve(operation.queue, operation.job);
    if (id === null) return NOTHING;
    const job = await place.job(operation.queue, id);
    return jobOperations[op](job, { ...operation, place, queue: place.queue(operation.queue) }, id);
  }
  throw new Error(`the oracle knows no operation ${op}`);
}

/** Do operations one after the other; the answer of each. An error of one does not stop the others. */
export async function executeAll(place, operations) {
  const answers = [];
  for (const operation of operations) {
    try {
      answers.push({ ok: (await execute(place, operation)) ?? null });
    } catch (error) {
      answers.push({ error: errorView(error) });
    }
  }
  return answers;
}

/** Without what is undefined, so that BullMQ's own defaults count. */
const given = (options) =>
  Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined));
