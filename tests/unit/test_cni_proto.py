"""The generated messages are those of cni.proto."""

import subprocess
import sys
from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorSet

from podwire.cni import cni_pb2

SOURCE = Path(cni_pb2.__file__).parents[2]


def generate(*arguments: str) -> None:
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", *arguments, "podwire/cni/cni.proto"]
    subprocess.run(command, cwd=SOURCE, check=True, capture_output=True, text=True)


def test_the_checked_in_messages_are_those_of_the_proto_file(tmp_path: Path) -> None:
    generate(f"--descriptor_set_out={tmp_path / 'set'}")
    (described,) = FileDescriptorSet.FromString((tmp_path / "set").read_bytes()).file
    for message in described.message_type:  # protoc writes them here and leaves them out of the generated text
        for field in message.field:
            field.ClearField("json_name")
    assert described.SerializeToString(deterministic=True) == cni_pb2.DESCRIPTOR.serialized_pb


def test_the_checked_in_types_are_those_of_the_proto_file(tmp_path: Path) -> None:
    generate(f"--pyi_out={tmp_path}")
    assert (tmp_path / "podwire/cni/cni_pb2.pyi").read_text() == (SOURCE / "podwire/cni/cni_pb2.pyi").read_text()
