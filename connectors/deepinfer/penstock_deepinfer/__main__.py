"""python3 -m penstock_deepinfer --listen unix:/run/d.sock --model NAME --checkpoint DIR"""
import argparse
import os
import signal
import sys

from .adapter import DeepInferEngine
from .wire import Schema
from .worker import Worker


def main():
    parser = argparse.ArgumentParser(description="A Penstock worker around DeepInfer.")
    parser.add_argument("--listen", required=True, help="unix:/PATH or HOST:PORT (port 0: any)")
    parser.add_argument("--model", required=True, help="the name that the gateway serves it under")
    parser.add_argument("--checkpoint", required=True, help="folder of the model")
    parser.add_argument("--name", default="deepinfer", help="of this worker, in logs and metrics")
    parser.add_argument("--proto", default=os.path.join(os.path.dirname(__file__), "..", "..", "..", "proto",
                                                         "engine.proto"), help="proto/engine.proto of the gateway")
    options = parser.parse_args()
    worker = Worker(DeepInferEngine(options.checkpoint), Schema(options.proto), options.name, options.model,
                    options.checkpoint)
    worker.start(options.listen)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: worker.stop())
    print(worker.address, flush=True)
    worker.wait()


if __name__ == "__main__":
    sys.exit(main())
