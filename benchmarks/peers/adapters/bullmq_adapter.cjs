// BullMQ on PostgreSQL: a statement claims a job, and another finishes it and claims the next. Written for Node.js, it speaks
// `protocol.py` itself, as far as its scenarios need it. A CommonJS module, for NODE_PATH leads only those to their packages.
"use strict";

const { once } = require("node:events");
const { createInterface } = require("node:readline");
const { setTimeout: sleep } = require("node:timers/promises");
const { createPostgresBackend, withBackend } = require("bullmq");

const { Queue, Worker } = withBackend(createPostgresBackend);
const NAME = "bench";
const CONCURRENCY = 32; // the most of the figures on its PostgreSQL page, with as many connections

const words = createInterface({ input: process.stdin });
const [firstLine, go, stop, over] = ["line", "go", "stop", "close"].map((event) => once(words, event));
words.on("line", (line) => words.emit(line));
words.on("close", () => ["go", "stop"].forEach((word) => words.emit(word)));

// Seconds on the clock of Python's time.monotonic().
const monotonic = () => Number(process.hrtime.bigint()) / 1e9;

function say(event, fields = {}) {
  const { userCPUTime, systemCPUTime } = process.resourceUsage(); // it has no child processes
  const message = { event, at: monotonic(), cpu: (userCPUTime + systemCPUTime) / 1e6, ...fields };
  process.stdout.write(`${JSON.stringify(message)}\n`);
}

const job = (number) => ({ name: "no_op", data: { number, order_id: `order-${String(number).padStart(8, "0")}` } });
const jobs = (count) => Array.from({ length: count }, (_, number) => job(number));
const add = (queue, number) => queue.add(job(number).name, job(number).data);

async function setup(connection) {
  const queue = new Queue(NAME, { connection: { ...connection, migrate: true } });
  await queue.waitUntilReady();
  await queue.close();
}

// Enqueue a first job, which connects, and then what the orders ask for.
async function produce(connection, orders, enqueue) {
  const queue = new Queue(NAME, { connection });
  await add(queue, -1);
  say("ready");
  await go;
  say("begin");
  const stamps = await enqueue(queue);
  say("end", { jobs: orders.jobs });
  await queue.close();
  if (stamps) say("told", { stamps });
}

async function produceAtRate(queue, { jobs: count, rate }) {
  const stamps = [];
  const began = monotonic();
  for (let number = 0; number < count; number++) {
    await sleep(Math.max(0, 1000 * (began + number / rate - monotonic())));
    await add(queue, number);
    stamps.push([number, monotonic()]);
  }
  return stamps;
}

async function work(connection, orders) {
  const stamps = [];
  let started = 0;
  say("ready");
  await go;
  const worker = new Worker(
    NAME,
    async ({ data }) => {
      if (orders.stamps) stamps.push([data.number, monotonic()]);
      started++;
      if (started === 1) say("begin");
      if (started === orders.jobs) {
        say("end", { jobs: started });
        words.emit("stop");
      }
    },
    { connection, concurrency: CONCURRENCY },
  );
  worker.on("error", console.error);
  await stop;
  await worker.close();
  say("told", { stamps });
}

const verbs = {
  setup,
  work,
  enqueue: (connection, orders) =>
    produce(connection, orders, async (queue) => {
      for (let number = 0; number < orders.jobs; number++) await add(queue, number);
    }),
  fill: (connection, orders) =>
    produce(connection, orders, async (queue) => {
      await queue.addBulk(jobs(orders.jobs));
    }),
  produce: (connection, orders) => produce(connection, orders, (queue) => produceAtRate(queue, orders)),
};

async function main() {
  const orders = JSON.parse((await firstLine)[0]);
  await verbs[orders.do]({ connectionString: orders.url, max: CONCURRENCY }, orders);
  say("gone");
  await over;
  process.exit();
}

main();
