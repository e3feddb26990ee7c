"""Protocol buffers for the messages of proto/engine.proto, straight from its text.

The schema is read when the worker starts, so there is no second list of fields that could differ
from it, and nothing to install. Messages are dicts; fields that are absent have their default when
they are read by Schema.decode(), but for messages and `optional` ones, which are None.

Errors: WireError, naming message and field. Source: protobuf.dev/programming-guides/encoding.
"""
import pathlib
import re
import struct

_VARINT = {"uint32", "uint64", "int32", "int64", "sint32", "sint64", "bool"}
_FIXED = {"float": ("<f", 5), "double": ("<d", 1), "fixed64": ("<Q", 1), "fixed32": ("<I", 5)}


class WireError(ValueError):
    """Bytes that are no message of the schema."""


class _Field:
    def __init__(self, label, kind, name, number):
        self.repeated = label == "repeated"
        self.optional = label == "optional"
        self.kind = kind
        self.name = name
        self.number = number


def _varint(value):
    out = bytearray()
    value &= (1 << 64) - 1
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(data, at):
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise WireError("a number is cut")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (1 << 64) - 1, at
    raise WireError("a number is longer than 64 bits")


class Schema:
    """All messages of a .proto file, by name; those inside others by their own name, too."""

    def __init__(self, path):
        text = re.sub(r"//[^\n]*", "", pathlib.Path(path).read_text(encoding="utf-8"))
        self.enums = {}
        self.messages = {}
        for match in re.finditer(r"\benum\s+(\w+)\s*\{([^}]*)\}", text):
            self.enums[match[1]] = {name: int(number) for name, number in
                                    re.findall(r"(\w+)\s*=\s*(\d+)\s*;", match[2])}
        text = re.sub(r"\benum\s+\w+\s*\{[^}]*\}", "", text)
        for match in re.finditer(r"\bmessage\s+(\w+)\s*\{([^}]*)\}", text):
            fields = [_Field(label, kind, name, int(number)) for label, kind, name, number in
                      re.findall(r"(?:(repeated|optional)\s+)?(\w+)\s+(\w+)\s*=\s*(\d+)\s*;", match[2])]
            self.messages[match[1]] = {field.number: field for field in fields}
        if not self.messages:
            raise WireError(f"{path} defines no messages")

    def encode(self, name, message):
        by_name = {field.name: field for field in self.messages[name].values()}
        out = bytearray()
        for key, value in message.items():
            if key not in by_name:
                raise WireError(f"{name} has no field {key}")
            field = by_name[key]
            values = value if field.repeated else [value]
            if value is None or field.repeated and not values:
                continue
            if field.repeated and self._packs(field):
                body = b"".join(self._scalar(field, item) for item in values)
                out += _varint(field.number << 3 | 2) + _varint(len(body)) + body
                continue
            for item in values:
                out += self._one(name, field, item)
        return bytes(out)

    def decode(self, name, data):
        fields = self.messages[name]
        message = {field.name: self._default(field) for field in fields.values()}
        at = 0
        while at < len(data):
            tag, at = _read_varint(data, at)
            number, wire = tag >> 3, tag & 7
            raw, at = self._raw(name, data, at, wire)
            field = fields.get(number)
            if field is None:
                continue  # of a newer version
            values = self._values(name, field, wire, raw)
            if field.repeated:
                message[field.name].extend(values)
            else:
                message[field.name] = values[-1]
        return message

    # A scalar or an enum: its repeated form is packed.
    def _packs(self, field):
        return field.kind in _VARINT or field.kind in _FIXED or field.kind in self.enums

    def _default(self, field):
        if field.repeated:
            return []
        if field.optional or field.kind in self.messages:
            return None
        return {"string": "", "bytes": b"", "bool": False, "float": 0.0, "double": 0.0}.get(field.kind, 0)

    def _scalar(self, field, value):
        if field.kind in _FIXED:
            return struct.pack(_FIXED[field.kind][0], value)
        if field.kind.startswith("sint"):
            value = value << 1 if value >= 0 else (-value << 1) - 1
        return _varint(int(value))

    def _one(self, name, field, value):
        if self._packs(field):
            wire = _FIXED[field.kind][1] if field.kind in _FIXED else 0
            return _varint(field.number << 3 | wire) + self._scalar(field, value)
        if field.kind == "string":
            value = value.encode("utf-8")
        elif field.kind in self.messages:
            value = self.encode(field.kind, value)
        elif field.kind != "bytes":
            raise WireError(f"{name}.{field.name} has the unknown type {field.kind}")
        return _varint(field.number << 3 | 2) + _varint(len(value)) + bytes(value)

    @staticmethod
    def _raw(name, data, at, wire):
        if wire == 0:
            return _read_varint(data, at)
        if wire == 2:
            size, at = _read_varint(data, at)
        else:
            size = {1: 8, 5: 4}.get(wire)
            if size is None:
                raise WireError(f"{name}: wire type {wire}")
        if at + size > len(data):
            raise WireError(f"{name} is cut")
        return data[at:at + size], at + size

    def _values(self, name, field, wire, raw):
        if wire == 2 and self._packs(field):
            if not field.repeated:
                raise WireError(f"{name}.{field.name}: bytes where a number is expected")
            values, at = [], 0
            while at < len(raw):
                item, at = self._raw(name, raw, at, _FIXED[field.kind][1] if field.kind in _FIXED else 0)
                values.append(self._value(name, field, item))
            return values
        return [self._value(name, field, raw)]

    def _value(self, name, field, raw):
        number = isinstance(raw, int)
        if field.kind in _FIXED:
            form = _FIXED[field.kind][0]
            if number or len(raw) != struct.calcsize(form):
                raise WireError(f"{name}.{field.name} has another size")
            return struct.unpack(form, raw)[0]
        if field.kind in _VARINT or field.kind in self.enums:
            if not number:
                raise WireError(f"{name}.{field.name}: bytes where a number is expected")
            if field.kind == "bool":
                return raw != 0
            if field.kind.startswith("sint"):
                return (raw >> 1) ^ -(raw & 1)
            return raw & 0xFFFFFFFF if field.kind == "uint32" else raw
        if number:
            raise WireError(f"{name}.{field.name}: a number where bytes are expected")
        if field.kind == "string":
            try:
                return bytes(raw).decode("utf-8")
            except UnicodeDecodeError as error:
                raise WireError(f"{name}.{field.name} is no UTF-8") from error
        return bytes(raw) if field.kind == "bytes" else self.decode(field.kind, raw)
