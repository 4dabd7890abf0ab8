"""The agent's file: what a right one gives, and the one line that each wrong one gets."""

from pathlib import Path

import pytest

from podwire.config import SOCKET_PATH_LIMIT, Config, ConfigError, Kubernetes, parse_config, read_config
from podwire.model.addresses import parse_prefix

LEAST = 'node_name = "one"\nstate_dir = "/var/lib/podwire"\n'


def test_the_least_file_has_defaults_for_the_rest() -> None:
    assert parse_config(LEAST, "f") == Config(node_name="one", state_dir=Path("/var/lib/podwire"))


def test_every_key_is_read() -> None:
    text = LEAST + (
        'manifests = "/etc/podwire/manifests/"\nservice_cidrs = ["10.96.0.0/16", "fd96::/108"]\n'
        'mtu = 1450\nlog_level = "debug"\nheartbeat_key_file = "/etc/podwire//heartbeat.key"\n'
    )
    assert parse_config(text, "f") == Config(
        node_name="one",
        state_dir=Path("/var/lib/podwire"),
        manifests=Path("/etc/podwire/manifests"),
        service_cidrs=(parse_prefix("10.96.0.0/16"), parse_prefix("fd96::/108")),
        mtu=1450,
        log_level="debug",
        heartbeat_key_file=Path("/etc/podwire/heartbeat.key"),
    )


def test_all_paths_lie_in_the_state_directory() -> None:
    config = parse_config('node_name = "one"\nstate_dir = "/s/./x/../n1/"\n', "f")
    paths = (config.database, config.cni_socket, config.admin_socket, config.spool, config.ready_mark, config.lock)
    assert [str(path) for path in paths] == [
        "/s/n1/podwire.db",
        "/s/n1/cni.sock",
        "/s/n1/admin.sock",
        "/s/n1/spool",
        "/s/n1/ready",
        "/s/n1/lock",
    ]


@pytest.mark.parametrize(
    ("text", "kubernetes"),
    [
        pytest.param("kubernetes = true", Kubernetes(), id="as a pod"),
        pytest.param("kubernetes = false\nmanifests = '/m'", None, id="not at all"),
        pytest.param("[kubernetes]", Kubernetes(), id="an empty table"),
        pytest.param(
            "[kubernetes]\n"
            'kubeconfig = "/etc/podwire/./kubeconfig"\n'
            'context = "edge"\n'
            'api_servers = ["https://192.0.2.1:6443", "https://[2001:db8::1]", "http://api.example/k8s/clusters/c-1"]\n'
            "network_condition = true\n",
            Kubernetes(
                Path("/etc/podwire/kubeconfig"),
                "edge",
                ("https://192.0.2.1:6443", "https://[2001:db8::1]", "http://api.example/k8s/clusters/c-1"),
                True,
            ),
            id="all keys",
        ),
    ],
)
def test_how_to_reach_the_api(text: str, kubernetes: Kubernetes | None) -> None:
    assert parse_config(LEAST + text, "f").kubernetes == kubernetes


@pytest.mark.parametrize("mtu", [1280, 65535])
def test_the_bounds_of_mtu_are_allowed(mtu: int) -> None:
    assert parse_config(f"{LEAST}mtu = {mtu}", "f").mtu == mtu


@pytest.mark.parametrize(
    ("text", "listen"), [("127.0.0.1:9273", ("127.0.0.1", 9273)), ("[fd00::0:1]:80", ("fd00::1", 80))]
)
def test_where_metrics_are_served(text: str, listen: tuple[str, int]) -> None:
    assert parse_config(f'{LEAST}metrics_listen = "{text}"', "f").metrics_listen == listen


@pytest.mark.parametrize("text", ["", "9273", ":9273", "localhost:9273", "127.0.0.1", "127.0.0.1:0", "::1:9273"])
def test_metrics_are_served_at_an_address_and_a_port(text: str) -> None:
    form = 'expected an IP address and a port, such as "127.0.0.1:9273" or "[::1]:9273"'
    with pytest.raises(ConfigError) as error:
        parse_config(f'{LEAST}metrics_listen = "{text}"', "f")
    assert str(error.value) == f"f: metrics_listen: {form}; found {text!r}"


@pytest.mark.parametrize(
    ("text", "listen"), [("0.0.0.0:10256", ("0.0.0.0", 10256)), ("[fd00::1]:10256", ("fd00::1", 10256))]
)
def test_where_load_balancers_are_answered(text: str, listen: tuple[str, int]) -> None:
    assert parse_config(f'{LEAST}healthz_listen = "{text}"', "f").healthz_listen == listen
    with pytest.raises(ConfigError, match="healthz_listen: expected an IP address and a port, such as"):
        parse_config(f'{LEAST}healthz_listen = "10256"', "f")


RANGES = ("192.0.2.0/24", "2001:db8::/64")


@pytest.mark.parametrize(
    ("text", "ranges"),
    [("", None), ("'primary'", None), (str(list(RANGES)), RANGES), ("['0.0.0.0/0', '::/0']", ("0.0.0.0/0", "::/0"))],
    ids=["by default", "primary", "ranges", "everywhere"],
)
def test_where_node_ports_are(text: str, ranges: tuple[str, ...] | None) -> None:
    wanted = tuple(map(parse_prefix, ranges)) if ranges is not None else None
    found = parse_config(LEAST + (f"node_port_addresses = {text}" if text else ""), "f").node_port_addresses
    assert found == wanted


PLACES = 'expected "primary", or a list of address ranges, such as ["192.0.2.0/24", "2001:db8::/64"]; found'


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("'secondary'", f"{PLACES} 'secondary'"),
        ("[]", f"{PLACES} []"),
        ("'192.0.2.0/24'", f"{PLACES} '192.0.2.0/24'"),
        ("['192.0.2.1/24']", "'192.0.2.1/24' has host bits set: expected 192.0.2.0/24"),
        ("['primary']", "'primary' is not an IP address"),
    ],
)
def test_node_ports_are_at_ranges_or_at_the_primary_addresses(text: str, error: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_config(f"{LEAST}node_port_addresses = {text}", "f")
    assert str(raised.value) == f"f: node_port_addresses: {error}"


@pytest.mark.parametrize("name", ["n", "worker-1", "rack2.site.example", "9"])
def test_node_names_of_kubernetes_are_allowed(name: str) -> None:
    assert parse_config(f'node_name = "{name}"\nstate_dir = "/s"', "f").node_name == name


SERVERS = (
    "kubernetes.api_servers: expected a list of addresses, such as "
    '["https://192.0.2.1:6443", "https://[2001:db8::1]:6443"]; found'
)
MTU = "expected a whole number from 1280 to 65535; leave it out to detect it; found"
NAME = 'node_name: expected the node\'s name in Kubernetes: lower-case letters, digits, "-" and ".", at most 253; found'


@pytest.mark.parametrize(
    ("text", "error"),
    [
        pytest.param(
            'node_nam = "one"\nstate_dir = "/s"', "node_nam: unknown key; did you mean node_name?", id="a misspelt key"
        ),
        pytest.param(LEAST + "mtus = 1500", "mtus: unknown key; did you mean mtu?", id="a key with one letter more"),
        pytest.param(
            LEAST + "[zzz]\na = 1",
            "zzz: unknown key; the keys are node_name, state_dir, manifests, kubernetes, service_cidrs, mtu, "
            "service_local_backend_weight, metrics_listen, node_port_addresses, healthz_listen, masquerade, "
            "service_traffic, non_masquerade_cidrs, transport, vxlan_vni, vxlan_port, frr_dir, heartbeat_port, "
            "announce_excluded_nodes, verify_seconds, heartbeat_key_file, log_level",
            id="a table like none of the keys",
        ),
        pytest.param(
            'state_dir = "/s"',
            f"{NAME.replace('expected', 'missing; expected').removesuffix('; found')}",
            id="no node name",
        ),
        pytest.param('node_name = "one"', "state_dir: missing; expected an absolute path", id="no state directory"),
        pytest.param(
            'node_name = "one"\nstate_dir = "lib/podwire"',
            "state_dir: expected an absolute path; found 'lib/podwire'",
            id="a relative state directory",
        ),
        pytest.param('node_name = "One"\nstate_dir = "/s"', f"{NAME} 'One'", id="a capital in the node name"),
        pytest.param('node_name = ""\nstate_dir = "/s"', f"{NAME} ''", id="an empty node name"),
        pytest.param(
            'node_name = "one\\n"\nstate_dir = "/s"', f"{NAME} 'one\\n'", id="a line break at the end of the node name"
        ),
        pytest.param("node_name = 7\nstate_dir = '/s'", f"{NAME} 7", id="a number for a node name"),
        pytest.param(
            LEAST + 'manifests = "manifests"',
            "manifests: expected an absolute path of a directory; found 'manifests'",
            id="relative manifests",
        ),
        pytest.param(LEAST + "mtu = 1279", f"mtu: {MTU} 1279", id="an mtu below IPv6's least"),
        pytest.param(LEAST + "mtu = 65536", f"mtu: {MTU} 65536", id="an mtu above a packet's largest"),
        pytest.param(LEAST + 'mtu = "1500"', f"mtu: {MTU} '1500'", id="an mtu as text"),
        pytest.param(LEAST + "mtu = true", f"mtu: {MTU} True", id="a truth for an mtu"),
        pytest.param(
            LEAST + "masquerade = 1", "masquerade: expected true or false; found 1", id="a number for a truth"
        ),
        pytest.param(
            LEAST + 'non_masquerade_cidrs = ["10.0.0.1/8"]',
            "non_masquerade_cidrs: '10.0.0.1/8' has host bits set: expected 10.0.0.0/8",
            id="a range with host bits",
        ),
        pytest.param(
            LEAST + "verify_seconds = -1",
            "verify_seconds: expected a whole number of seconds up to 86400; 0 for never; found -1",
            id="a negative time",
        ),
        pytest.param(
            LEAST + 'log_level = "loud"',
            'log_level: expected one of "debug", "info", "warning", "error"; found \'loud\'',
            id="an unknown log level",
        ),
        pytest.param(
            LEAST + 'service_cidrs = "10.96.0.0/16"',
            'service_cidrs: expected a list of address ranges, such as ["10.96.0.0/16", "fd96::/108"]; '
            "found '10.96.0.0/16'",
            id="one range without a list",
        ),
        pytest.param(
            LEAST + 'service_cidrs = ["10.96.0.0/33"]',
            "service_cidrs: '10.96.0.0/33' is not an address range: expected ADDRESS/LENGTH with a length from 0 to 32",
            id="a range longer than its address",
        ),
        pytest.param(
            LEAST + 'service_cidrs = ["010.96.0.0/16"]',
            "service_cidrs: '010.96.0.0' is not an IP address",
            id="a range with leading zeros",
        ),
        pytest.param(
            LEAST + 'service_cidrs = ["10.96.0.1/16"]',
            "service_cidrs: '10.96.0.1/16' has host bits set: expected 10.96.0.0/16",
            id="a range with host bits",
        ),
        pytest.param(
            LEAST + 'service_cidrs = ["10.96.0.0/16", "169.254.1.0/24"]',
            "service_cidrs: expected ranges without link-local addresses (169.254.0.0/16); found '169.254.1.0/24'",
            id="a range with the gateway of all pods",
        ),
        pytest.param(
            LEAST + 'service_cidrs = ["::/0"]',
            "service_cidrs: expected ranges without unspecified addresses (::/128); found '::/0'",
            id="a range of everything",
        ),
        pytest.param(
            LEAST + "kubernetes = 1", "kubernetes: expected true, or a table [kubernetes]; found 1", id="not a table"
        ),
        pytest.param(
            LEAST + "[kubernetes]\nkubeconfi = '/k'",
            "kubernetes.kubeconfi: unknown key; did you mean kubeconfig?",
            id="a misspelt key in a table",
        ),
        pytest.param(
            LEAST + "[kubernetes]\nzzz = 1",
            "kubernetes.zzz: unknown key; the keys are kubeconfig, context, api_servers, network_condition",
            id="a key like none of its table",
        ),
        pytest.param(
            LEAST + "[kubernetes]\nkubeconfig = '.kube/config'",
            "kubernetes.kubeconfig: expected an absolute path of a file; found '.kube/config'",
            id="a relative kubeconfig",
        ),
        pytest.param(
            LEAST + "[kubernetes]\napi_servers = ['10.99.0.1:6443']", f"{SERVERS} ['10.99.0.1:6443']", id="no https"
        ),
        pytest.param(
            LEAST + "[kubernetes]\napi_servers = ['https://fd99::1:6443']",
            f"{SERVERS} ['https://fd99::1:6443']",
            id="IPv6 without brackets",
        ),
        pytest.param(LEAST + "[kubernetes]\napi_servers = []", f"{SERVERS} []", id="no server in the list"),
        pytest.param(
            LEAST + "[kubernetes]\ncontext = 'edge'",
            "kubernetes.context: expected kubernetes.kubeconfig beside it",
            id="a context of no kubeconfig",
        ),
        pytest.param(
            LEAST + "manifests = '/m'\n[kubernetes]\nkubeconfig = '/k'",
            "manifests, kubernetes: expected one of the two: the objects come from one place",
            id="two places for the objects",
        ),
        pytest.param('node_name = "one"\nmtu = \n', "line 2, column 7: Invalid value", id="a syntax error"),
        pytest.param(
            'node_name = "one"\nstate_dir = """/s\n',
            "line 3: Unterminated string, at the end of the file",
            id="a syntax error at the end",
        ),
        pytest.param(
            LEAST + 'state_dir = "/t"\n', "line 3, column 17: Cannot overwrite a value", id="a key written twice"
        ),
    ],
)
def test_wrong_files_get_one_line(text: str, error: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_config(text, "/etc/podwire/agent.toml")
    assert str(raised.value) == f"/etc/podwire/agent.toml: {error}"


def test_a_state_directory_too_long_for_a_socket_is_refused_with_the_reason() -> None:
    longest = "/" + "x" * (SOCKET_PATH_LIMIT - len("/admin.sock") - 1)
    config = parse_config(f'node_name = "one"\nstate_dir = "{longest}"', "f")
    assert len(str(config.admin_socket)) == SOCKET_PATH_LIMIT
    with pytest.raises(ConfigError, match=r"^f: state_dir: too long by 1 bytes: .* at most 107; .* at most 96 bytes$"):
        parse_config(f'node_name = "one"\nstate_dir = "{longest}x"', "f")


def test_the_limit_of_a_socket_path_counts_bytes_not_letters() -> None:
    with pytest.raises(ConfigError, match="too long by 5 bytes"):
        parse_config(f'node_name = "one"\nstate_dir = "/{"é" * 50}"', "f")


def test_a_file_is_read_from_disk(tmp_path: Path) -> None:
    path = tmp_path / "agent.toml"
    path.write_text(LEAST)
    assert read_config(path).node_name == "one"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        read_config(tmp_path / "none.toml")
    assert str(raised.value) == f"{tmp_path}/none.toml: No such file or directory"


def test_a_file_of_other_bytes_is_named(tmp_path: Path) -> None:
    path = tmp_path / "agent.toml"
    path.write_bytes(b'node_name = "\xff"')
    with pytest.raises(ConfigError) as raised:
        read_config(path)
    assert str(raised.value) == f"{path}: byte 13 is not UTF-8: expected a TOML file"


def test_the_environment_names_the_node_where_all_nodes_have_one_file(tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    file.write_text('node_name = "of-the-file"\nstate_dir = "/var/lib/podwire"\n')
    assert read_config(file, {"PODWIRE_NODE_NAME": "node1"}).node_name == "node1"
    assert read_config(file, {"PODWIRE_NODE_NAME": ""}).node_name == "of-the-file"
    with pytest.raises(ConfigError, match=r"^environment PODWIRE_NODE_NAME: node_name: expected .*; found 'Node_1'$"):
        read_config(file, {"PODWIRE_NODE_NAME": "Node_1"})
