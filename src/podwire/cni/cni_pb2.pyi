from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class CniRequest(_message.Message):
    __slots__ = ("environment", "stdin")
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    STDIN_FIELD_NUMBER: _ClassVar[int]
    environment: _containers.RepeatedScalarFieldContainer[str]
    stdin: bytes
    def __init__(self, environment: _Optional[_Iterable[str]] = ..., stdin: _Optional[bytes] = ...) -> None: ...

class CniReply(_message.Message):
    __slots__ = ("stdout", "exit_code")
    STDOUT_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    stdout: bytes
    exit_code: int
    def __init__(self, stdout: _Optional[bytes] = ..., exit_code: _Optional[int] = ...) -> None: ...
