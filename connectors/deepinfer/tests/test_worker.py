"""The worker, with a stand-in for DeepInfer, over a real socket.

    python3 connectors/deepinfer/tests/test_worker.py [--binary build/release/penstock]

With the binary a real gateway is put before the worker, too.
"""
import argparse
import json
import os
import pathlib
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path[:0] = [str(HERE.parent), str(HERE / "standin")]

from penstock_deepinfer.adapter import DeepInferEngine  # noqa: E402
from penstock_deepinfer.wire import Schema, WireError  # noqa: E402
from penstock_deepinfer.worker import Worker  # noqa: E402

SCHEMA = Schema(ROOT / "proto" / "engine.proto")
BINARY = None


def sampling(**more):
    return {"max_tokens": 5, "choices": 1, "top_logprobs": -1, "temperature": 0.0, "top_p": 1.0, **more}


def submit(number, tokens, **more):
    return {"request_id": number, "model": "m", "sampling": sampling(),
            "prompt": struct.pack(f"<{len(tokens)}I", *tokens), **more}


class Gateway:
    def __init__(self, address, shard=0, hello=None):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(10)
        self.socket.connect(address[5:])
        self.send({"hello": hello or {"gateway_epoch": 7, "shard": shard, "protocol_version": 2}})

    def send(self, frame):
        data = SCHEMA.encode("GatewayFrame", frame)
        self.socket.sendall(struct.pack("<I", len(data)) + data)

    def frame(self):
        head = self.socket.recv(4, socket.MSG_WAITALL)
        if len(head) < 4:
            return None
        data = self.socket.recv(struct.unpack("<I", head)[0], socket.MSG_WAITALL)
        return SCHEMA.decode("WorkerFrame", data)

    def outputs(self, number):
        """Until the request has ended: its tokens, and its last output."""
        tokens = []
        while True:
            frame = self.frame()
            for output in frame["outputs"]:
                if output["request_id"] != number:
                    continue
                assert output["finish"] == 4 or output["index"] == len(tokens) + self.emitted, output
                tokens += output["tokens"]
                if output["finish"]:
                    return tokens, output

    emitted = 0


class WireTest(unittest.TestCase):
    def test_bytes_are_those_of_the_encoding(self):
        # Typed by hand from the encoding's definition.
        self.assertEqual(SCHEMA.encode("Hello", {"gateway_epoch": 1, "shard": 300, "protocol_version": 2}),
                         bytes.fromhex("09" "0100000000000000" "10ac02" "1802"))
        self.assertEqual(SCHEMA.encode("Sampling", {"temperature": 1.0, "top_k": -1, "stop_token_ids": [1, 300]}),
                         bytes.fromhex("0d0000803f" "1801" "5203" "01ac02"))
        self.assertEqual(SCHEMA.encode("GatewayFrame", {"cancels": [5]}), bytes.fromhex("1a0105"))

    def test_what_is_read_is_what_was_written(self):
        frame = {"hello": None, "submits": [submit(1 << 40, [1, 2], emitted=[3])], "cancels": [9, 1 << 63]}
        read = SCHEMA.decode("GatewayFrame", SCHEMA.encode("GatewayFrame", frame))
        self.assertEqual(read["cancels"], frame["cancels"])
        self.assertEqual(read["submits"][0]["prompt"], frame["submits"][0]["prompt"])
        self.assertEqual(read["submits"][0]["sampling"]["top_logprobs"], -1)
        self.assertIsNone(read["submits"][0]["handoff"])
        # Unpacked repeated numbers, unknown fields.
        self.assertEqual(SCHEMA.decode("GatewayFrame", bytes.fromhex("1805" "1806" "fa0103616263"))["cancels"], [5, 6])

    def test_no_bytes_crash_it(self):
        whole = SCHEMA.encode("GatewayFrame", {"hello": {"gateway_epoch": 7}, "submits": [submit(1, [1, 2])]})
        for cut in range(len(whole)):
            for data in (whole[:cut], whole[:cut] + b"\xff" + whole[cut + 1:], whole[:cut] + b"\x07" + whole[cut:]):
                try:
                    SCHEMA.decode("GatewayFrame", data)
                except WireError:
                    pass
        with self.assertRaises(WireError):
            SCHEMA.encode("Hello", {"shards": 1})


class WorkerTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.worker = Worker(DeepInferEngine("nowhere"), SCHEMA, "w", "m")
        self.worker.start(f"unix:{self.folder.name}/w.sock")

    def tearDown(self):
        self.worker.stop()
        self.folder.cleanup()

    def test_says_what_it_is_and_beats(self):
        gateway = Gateway(self.worker.address)
        first = gateway.frame()
        self.assertEqual(first["hello"]["engine"], "deepinfer 0.1.0+standin")
        self.assertEqual(first["hello"]["models"][0]["vocab_size"], 2048)
        self.assertEqual(first["loads"][0]["kv_tokens_total"], 65536)
        self.assertIsNone(gateway.frame()["hello"])

    def test_answers_go_to_their_own_stream(self):
        one, two = Gateway(self.worker.address, 0), Gateway(self.worker.address, 1)
        one.send({"submits": [submit(1, [10, 11])]})
        two.send({"submits": [submit(1, [20, 21, 22], sampling=sampling(max_tokens=4))]})
        self.assertEqual(one.outputs(1)[0], [10, 11, 10, 11, 10])
        tokens, last = two.outputs(1)
        self.assertEqual((tokens, last["finish"]), ([20, 21, 22, 20], 2))
        # A stop token ends it, and what was emitted elsewhere counts.
        one.emitted = 2
        one.send({"submits": [submit(2, [5, 6], emitted=[7, 8], sampling=sampling(stop_token_ids=[6]))]})
        tokens, last = one.outputs(2)
        self.assertEqual((tokens, last["finish"]), ([5, 6], 1))

    def test_refusals_say_what(self):
        gateway = Gateway(self.worker.address)
        cases = [({"model": "x"}, 6, "serves m"), ({"prompt": b"abc"}, 0, "whole ids"),
                 ({"sampling": sampling(choices=2)}, 2, "choices"), ({"sampling": sampling(top_logprobs=3)}, 2, "logprobs"),
                 ({"sampling": sampling(max_tokens=5000)}, 1, "do not fit"), ({"handoff": {"id_low": 1}}, 2, "apart"),
                 ({"constraint": {"kind": 1}}, 2, "constrained"), ({"prompt": struct.pack("<I", 2048)}, 0, "vocabulary")]
        for number, (what, code, says) in enumerate(cases):
            gateway.send({"submits": [{**submit(number, [1]), **what}]})
            _, last = gateway.outputs(number)
            self.assertEqual((last["finish"], last["error_code"]), (4, code), what)
            self.assertIn(says, last["error_message"])

    def test_cancels_and_a_gateway_that_goes(self):
        gateway = Gateway(self.worker.address)
        gateway.send({"submits": [submit(1, [1], sampling=sampling(max_tokens=4000))]})
        gateway.send({"cancels": [1, 99]})
        _, last = gateway.outputs(1)
        self.assertEqual(last["finish"], 3)
        gateway.send({"submits": [submit(2, [1], sampling=sampling(max_tokens=4000))]})
        while not self.worker.engine.running:
            time.sleep(0.001)
        gateway.socket.close()
        for _ in range(1000):
            if not self.worker.engine.running:
                break
            time.sleep(0.005)
        self.assertEqual(self.worker.engine.running, 0)

    def test_broken_gateways_hear_why(self):
        other = Gateway(self.worker.address, hello={"gateway_epoch": 1, "protocol_version": 1})
        self.assertIn("version 1", other.frame()["goodbye"])
        twice = Gateway(self.worker.address)
        twice.send({"hello": {"gateway_epoch": 7, "protocol_version": 2}})
        frames = iter(twice.frame, None)
        self.assertIn("a second hello", [f["goodbye"] for f in frames][-1])
        newer = [Gateway(self.worker.address), Gateway(self.worker.address)]
        self.assertIn("newer stream", [f["goodbye"] for f in iter(newer[0].frame, None)][-1])

    def test_an_engine_that_fails_ends_the_worker(self):
        gateway = Gateway(self.worker.address)
        self.worker.engine._engine._fail_at = 2
        gateway.send({"submits": [submit(1, [1])]})
        self.assertIn("the device is gone", [f["goodbye"] for f in iter(gateway.frame, None)][-1])
        with self.assertRaises(RuntimeError):
            self.worker.wait()


class GatewayTest(unittest.TestCase):
    def test_a_real_gateway_before_it(self):
        if BINARY is None:
            self.skipTest("needs --binary")
        with tempfile.TemporaryDirectory() as folder:
            address = f"unix:{folder}/w.sock"
            nano = ROOT / "models" / "nano"
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(HERE.parent), str(HERE / "standin")))}
            worker = subprocess.Popen([sys.executable, "-m", "penstock_deepinfer", "--listen", address, "--model",
                                       "nano", "--checkpoint", str(nano)], env=environment, stdout=subprocess.PIPE)
            worker.stdout.readline()
            gateway = subprocess.Popen([BINARY, "gateway", "--port", "0", "--data-dir", folder,
                                        "--worker", f"w={address}", "--model", f"nano={nano}", "--kv-cache", "off"],
                                       stderr=subprocess.PIPE, text=True)
            try:
                port = None
                for line in gateway.stderr:
                    if "serving on" in line:
                        port = int(line.strip().rstrip('"}').rsplit(":", 1)[1])
                        break
                self.assertIsNotNone(port)
                body = {"model": "nano", "max_tokens": 12, "messages": [{"role": "user", "content": "hello there"}]}
                request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/chat/completions",
                                                 json.dumps(body).encode(), {"content-type": "application/json"})
                answer = json.loads(urllib.request.urlopen(request, timeout=30).read())
                self.assertGreater(answer["usage"]["completion_tokens"], 0)
                self.assertIn(answer["choices"][0]["finish_reason"], ("stop", "length"))
            finally:
                for process in (gateway, worker):
                    process.terminate()
                    process.wait(timeout=30)
                gateway.stderr.close()
                worker.stdout.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary")
    BINARY = parser.parse_args().binary
    unittest.main(argv=[sys.argv[0]], warnings="ignore")
