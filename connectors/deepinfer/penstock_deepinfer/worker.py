"""A worker of the engine protocol (docs/protocol/engine.md) around one engine.

Threads: one accepts, one reads each stream, one steps the engine and is the only one to touch it,
one sends a heartbeat every 200 ms. A stream is one gateway shard; its end cancels its requests.

Invariants: request ids on the wire are the gateway's, inside they are unique over all streams; the
index of a choice's tokens has no gaps; after a finish nothing of a request is sent.
Errors: a broken frame ends its stream with a goodbye; an engine that raises ends the worker.
"""
import itertools
import queue
import secrets
import socket
import struct
import threading
import time

from .adapter import Refused, Request
from .wire import WireError

PROTOCOL_VERSION = 2
MESSAGE_BYTES_MAX = 32 << 20
HEARTBEAT_SECONDS = 0.2
OPEN_REQUESTS_MAX = 4096
MODEL_NOT_FOUND, UNAVAILABLE, OVERLOADED = 6, 16, 17
FINISH = {"stop": 1, "length": 2, "cancelled": 3, "error": 4}


class _Open:
    """A request under way."""

    def __init__(self, stream, wire_id, emitted):
        self.stream = stream
        self.wire_id = wire_id
        self.index = emitted
        self.told_cached = False


class _Stream:
    def __init__(self, worker, connection):
        self.worker = worker
        self.connection = connection
        self.lock = threading.Lock()
        self.greeted = False
        self.key = None
        self.open = {}  # wire id -> inner id

    def send(self, frame):
        """False when the gateway has gone."""
        data = self.worker.schema.encode("WorkerFrame", frame)
        try:
            with self.lock:
                self.connection.sendall(struct.pack("<I", len(data)) + data)
            return True
        except OSError:
            return False

    def end(self, why=""):
        if why:
            self.send({"step": self.worker.steps, "goodbye": why})
        try:
            self.connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.connection.close()

    def read_frame(self):
        head = self._read(4)
        if head is None:
            return None
        size = struct.unpack("<I", head)[0]
        if size > MESSAGE_BYTES_MAX:
            raise WireError(f"a message of {size} bytes; the limit is {MESSAGE_BYTES_MAX}")
        data = self._read(size)
        return None if data is None else self.worker.schema.decode("GatewayFrame", data)

    def _read(self, size):
        out = bytearray()
        while len(out) < size:
            part = self.connection.recv(min(1 << 20, size - len(out)))
            if not part:
                return None
            out += part
        return bytes(out)


class Worker:
    def __init__(self, engine, schema, name, model, checkpoint=""):
        self.engine = engine
        self.schema = schema
        self.name = name
        self.model = model
        self.checkpoint = checkpoint
        self.epoch = secrets.randbits(63) | 1
        self.steps = 0
        self.failure = None
        self.address = ""
        self._listener = None
        self._streams = {}
        self._streams_lock = threading.Lock()
        self._orders = queue.Queue()
        self._ids = itertools.count(1)
        self._requests = {}  # inner id -> _Open; the engine thread's
        self._load = self._loads()
        self._stopping = threading.Event()

    def start(self, listen):
        if listen.startswith("unix:"):
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind(listen[5:])
            self.address = listen
        else:
            host, port = listen.rsplit(":", 1)
            self._listener = socket.create_server((host, int(port)))
            self.address = f"{host}:{self._listener.getsockname()[1]}"
        self._listener.listen()
        for run in (self._accept, self._engine_loop, self._heartbeat):
            threading.Thread(target=run, daemon=True).start()

    def stop(self):
        self._stopping.set()
        self._listener.close()
        for stream in self._all_streams():
            stream.end("the worker stops")

    def wait(self):
        """Until stop() or a failure of the engine, which is raised."""
        self._stopping.wait()
        if self.failure is not None:
            raise self.failure

    # --- streams

    def _all_streams(self):
        with self._streams_lock:
            return list(self._streams.values())

    def _accept(self):
        while not self._stopping.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(_Stream(self, connection),), daemon=True).start()

    def _serve(self, stream):
        try:
            self._read_all(stream)
        except WireError as error:
            stream.end(str(error))
        except OSError:
            pass
        with self._streams_lock:
            if self._streams.get(stream.key) is stream:
                del self._streams[stream.key]
        self._orders.put(("gone", stream, None))
        stream.end()

    def _read_all(self, stream):
        while (frame := stream.read_frame()) is not None:
            if (frame["hello"] is not None) == stream.greeted:
                raise WireError("a second hello" if stream.greeted else "the first frame has no hello")
            if frame["hello"] is not None:
                self._greet(stream, frame["hello"])
            for submit in frame["submits"]:
                self._orders.put(("submit", stream, submit))
            for wire_id in frame["cancels"]:
                self._orders.put(("cancel", stream, wire_id))

    def _greet(self, stream, hello):
        if hello["protocol_version"] != PROTOCOL_VERSION:
            raise WireError(f"the gateway speaks version {hello['protocol_version']} of the protocol, "
                            f"this worker {PROTOCOL_VERSION}")
        stream.greeted = True
        stream.key = (hello["gateway_epoch"], hello["shard"])
        stream.send({
            "hello": {"worker_epoch": self.epoch, "name": self.name, "engine": self.engine.version,
                      "protocol_version": PROTOCOL_VERSION,
                      "models": [{"name": self.model, "checkpoint_dir": self.checkpoint.encode(),
                                  "context_length": self.engine.context_length,
                                  "vocab_size": self.engine.vocab_size}]},
            "step": self.steps, "loads": self._load})
        with self._streams_lock:
            older = self._streams.get(stream.key)
            self._streams[stream.key] = stream
        if older is not None:
            older.end("a newer stream of the same gateway")

    def _heartbeat(self):
        while not self._stopping.wait(HEARTBEAT_SECONDS):
            for stream in self._all_streams():
                stream.send({"step": self.steps, "loads": self._load})

    # --- the engine's thread

    def _loads(self):
        return [{"rank": 0, "running": self.engine.running, "waiting": self.engine.waiting,
                 "kv_tokens_used": self.engine.kv_tokens_used,
                 "kv_tokens_total": self.engine.kv_tokens_total, "step": self.steps}]

    def _engine_loop(self):
        try:
            while not self._stopping.is_set():
                self._take_orders(wait=not self._requests)
                if self._requests:
                    self._step()
        except Exception as error:  # the engine is broken: whoever started us starts us again
            self.failure = error
            for stream in self._all_streams():
                stream.end(f"the engine failed: {error}")
            self._stopping.set()

    def _take_orders(self, wait):
        try:
            order = self._orders.get(timeout=0.1) if wait else self._orders.get_nowait()
            while True:
                kind, stream, what = order
                if kind == "submit":
                    self._submit(stream, what)
                elif kind == "cancel":
                    self._cancel(stream, what)
                else:
                    for wire_id in list(stream.open):
                        self._cancel(stream, wire_id)
                order = self._orders.get_nowait()
        except queue.Empty:
            self._load = self._loads()

    def _submit(self, stream, submit):
        wire_id = submit["request_id"]
        try:
            request = self._request(submit)
            if wire_id in stream.open:
                raise Refused(Refused.INVALID_ARGUMENT, f"the request id {wire_id} is in use")
            self.engine.submit(request)
        except Refused as why:
            self._send(stream, {"request_id": wire_id, "finish": FINISH["error"], "error_code": why.code,
                                "error_message": str(why), "error_field": why.field})
            return
        stream.open[wire_id] = request.request_id
        self._requests[request.request_id] = _Open(stream, wire_id, len(submit["emitted"]))

    def _request(self, submit):
        sampling = submit["sampling"]
        if submit["model"] != self.model:
            raise Refused(MODEL_NOT_FOUND, f"this worker serves {self.model}")
        if len(self._requests) >= OPEN_REQUESTS_MAX:
            raise Refused(OVERLOADED, f"{OPEN_REQUESTS_MAX} requests are open")
        if sampling is None or len(submit["prompt"]) % 4 != 0 or not submit["prompt"]:
            raise Refused(Refused.INVALID_ARGUMENT, "a submit has a prompt of whole ids, and sampling")
        unsupported = [text for text, there in (
            ("choices (n)", sampling["choices"] > 1),
            ("logprobs", sampling["top_logprobs"] >= 0),
            ("logit_bias", bool(sampling["logit_bias"])),
            ("penalties", sampling["presence_penalty"] != 0 or sampling["frequency_penalty"] != 0 or
             sampling["repetition_penalty"] not in (0, 1)),
            ("min_p", sampling["min_p"] > 0),
            ("a constrained answer", submit["constraint"] is not None and submit["constraint"]["kind"] != 0),
            ("prefill and decode apart", submit["handoff"] is not None),
        ) if there]
        if unsupported:
            raise Refused(Refused.UNSUPPORTED, f"this engine does not do {', '.join(unsupported)}")
        count = len(submit["prompt"]) // 4
        tokens = list(struct.unpack(f"<{count}I", submit["prompt"])) + submit["emitted"]
        if max(tokens) >= self.engine.vocab_size:
            raise Refused(Refused.INVALID_ARGUMENT, "a token is outside the vocabulary", "prompt")
        return Request(next(self._ids), tokens, sampling["max_tokens"] - len(submit["emitted"]),
                       sampling["temperature"], sampling["top_p"], max(sampling["top_k"], 0), sampling["seed"],
                       sampling["stop_token_ids"], sampling["ignore_eos"])

    def _cancel(self, stream, wire_id):
        inner = stream.open.pop(wire_id, None)
        if inner is None:
            return
        self.engine.cancel(inner)
        request = self._requests.pop(inner)
        self._send(stream, {"request_id": wire_id, "finish": FINISH["cancelled"], "index": request.index})

    def _step(self):
        progress = self.engine.step()
        self.steps += 1
        self._load = self._loads()
        by_stream = {}
        for made in progress:
            request = self._requests.get(made.request_id)
            if request is None:
                continue  # cancelled meanwhile
            output = {"request_id": request.wire_id, "tokens": made.tokens, "index": request.index}
            if not request.told_cached:
                request.told_cached = True
                output["cached_tokens"] = made.cached_tokens
            request.index += len(made.tokens)
            if made.finish:
                output["finish"] = FINISH[made.finish]
                del self._requests[made.request_id]
                del request.stream.open[request.wire_id]
            by_stream.setdefault(request.stream, []).append(output)
        for stream, outputs in by_stream.items():
            stream.send({"step": self.steps, "outputs": outputs, "loads": self._load})
        if not progress:
            time.sleep(0.001)  # nothing was ready; the engine is not asked in a tight loop

    def _send(self, stream, output):
        stream.send({"step": self.steps, "outputs": [output], "loads": self._load})
