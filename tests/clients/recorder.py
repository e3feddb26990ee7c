#!/usr/bin/env python3
"""Stands between clients and a server and holds every answer to docs/protocol/schemas: recorder.py URL LEAST

Prints its own URL, passes bytes on as they come, and keeps those of the answers. On SIGTERM it reads what it
kept, and ends with 1 if an answer, an event of a stream or a message of a WebSocket is none that the schemas know,
or if there are fewer than LEAST: then the clients went another way.
"""
import http.client
import io
import os
import signal
import socket
import sys
import threading
import urllib.parse

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "schemas"))
import schemas  # noqa: E402

connections = []  # (bytes of the client, bytes of the server)


def pump(source, target, kept):
    try:
        while piece := source.recv(1 << 16):
            kept += piece
            target.sendall(piece)
    except OSError:
        pass
    for end in (source, target):
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


def accept(listener, server):
    while True:
        client, _ = listener.accept()
        upstream = socket.create_connection(server)
        for end in (client, upstream):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        kept = (bytearray(), bytearray())
        connections.append(kept)
        for source, target, into in ((client, upstream, kept[0]), (upstream, client, kept[1])):
            threading.Thread(target=pump, args=(source, target, into), daemon=True).start()


def read_requests(data):
    """(method, path, headers) of each request."""
    stream = io.BytesIO(data)
    while line := stream.readline().decode("latin-1").split():
        headers = http.client.parse_headers(stream)
        if headers.get("transfer-encoding"):
            read_chunks(stream)
        stream.seek(int(headers.get("content-length", 0)), os.SEEK_CUR)
        yield line[0], line[1], dict(headers)


def read_chunks(stream):
    text = b""
    while size := int(stream.readline() or b"0", 16):
        text += stream.read(size)
        stream.readline()
    stream.readline()
    return text


def read_answer(stream, method):
    """(status, headers, body); None behind the last."""
    line = stream.readline().split()
    if not line:
        return None
    headers = http.client.parse_headers(stream)
    status = int(line[1])
    if headers.get("transfer-encoding"):
        return status, headers, read_chunks(stream)
    return status, headers, b"" if method == "HEAD" or status == 101 else stream.read(int(headers.get("content-length", 0)))


def read_messages(stream):
    """Texts of a WebSocket's server, which come in frames that are whole and not masked."""
    while head := stream.read(2):
        size = head[1] & 0x7F
        if size > 125:
            size = int.from_bytes(stream.read(2 if size == 126 else 8), "big")
        text = stream.read(size)
        if head[0] == 0x81 and len(text) == size:
            yield text.decode()


def check(connection):
    """How many answers of a connection fit."""
    count, stream = 0, io.BytesIO(connection[1])
    for method, path, headers in read_requests(connection[0]):
        answer = read_answer(stream, method)
        if answer is None:
            break  # the client left before
        status, answer_headers, body = answer
        schemas.check_answer(path, status, answer_headers.get("content-type", ""), body.decode(), headers)
        count += 1
        if status == 101:
            for message in map(schemas.strict_json, read_messages(stream)):
                schemas.check("responses.json#" + ("socket_error" if "status" in message else "events"), message)
                count += 1
            break
    return count


def main():
    server = urllib.parse.urlsplit(sys.argv[1])
    listener = socket.create_server(("127.0.0.1", 0))
    print(f"http://127.0.0.1:{listener.getsockname()[1]}{server.path}", flush=True)
    threading.Thread(target=accept, args=(listener, (server.hostname, server.port)), daemon=True).start()
    signal.sigwait({signal.SIGTERM})
    count = 0
    for connection in list(connections):
        try:
            count += check((bytes(connection[0]), bytes(connection[1])))
        except ValueError as problem:
            sys.exit(f"an answer to a client fits no schema: {problem}")
    print(f"schemas: {count} answers to clients fit", file=sys.stderr)
    sys.exit(0 if count >= int(sys.argv[2]) else f"that is fewer than {sys.argv[2]}")


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    main()
