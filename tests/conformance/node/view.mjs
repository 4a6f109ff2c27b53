// What the oracle says about jobs and errors: plain JSON.

const FIELDS = [
  'id', 'name', 'data', 'opts', 'progress', 'delay', 'priority', 'timestamp', 'attemptsStarted',
  'attemptsMade', 'stalledCounter', 'finishedOn', 'processedOn', 'failedReason', 'stacktrace',
  'returnvalue', 'parent', 'parentKey', 'deduplicationId', 'repeatJobKey', 'processedBy',
  'deferredFailure', 'nextRepeatableJobId',
];

/** A job as Node sees it. Fields that Node has as undefined are left out; no job is null. */
export function jobView(job) {
  return job ? Object.fromEntries(FIELDS.map((field) => [field, job[field]])) : null;
}

/** The ids of a flow, in the shape of the flow. */
export function flowView(node) {
  return node.children ? { id: node.job.id, children: node.children.map(flowView) } : { id: node.job.id };
}

/** An error with BullMQ's code, where it has one. */
export function errorView(error) {
  const { name, message, code } = error instanceof Error ? error : new Error(String(error));
  return code === undefined ? { name, message } : { name, message, code };
}
