"""What users of such networks have met when pods are attached, each with the tests that show it can't happen here.

Invariants: a test that is named here exists. Whoever renames or removes one says here what shows the case from then on.
"""

import ast
import functools
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
CASES: dict[str, tuple[str, ...]] = {
    # --- a pod that goes ---------------------------------------------------------------------------
    "a hard reboot without a DEL leaks the addresses of all pods": (
        "kernel/test_reboot.py::test_after_a_boot_the_addresses_of_dead_sandboxes_are_free",
        "kernel/test_reboot.py::test_after_a_boot_who_lives_keeps_its_addresses",
    ),
    "a DEL without a namespace, or a second one, fails and is repeated for ever": (
        "kernel/test_attach.py::test_deleting_succeeds_when_the_namespace_has_gone",
        "kernel/test_attach.py::test_deleting_leaves_nothing_and_can_be_repeated",
        "kernel/test_cnitool.py::test_a_namespace_that_does_not_exist",
    ),
    "a DEL while the agent is down is lost, or waits for ever": (
        "kernel/test_cnitool.py::test_a_del_without_an_agent_is_carried_out_by_the_next",
        "kernel/test_cnitool.py::test_an_agent_that_hangs_gets_its_dels_from_the_spool",
        "unit/test_shims_spool.py::test_killed_at_any_system_call_a_del_is_spooled_whole_or_not_at_all",
        "kernel/test_reboot.py::test_spooled_dels_of_the_boot_before_are_harmless",
    ),
    "a DEL right after a start meets an agent that knows nothing yet": (
        "kernel/test_cnitool.py::test_a_pod_with_two_interfaces",
        "unit/test_attachments_model.py::test_attachments_and_store_are_as_a_simple_model_says",
    ),
    "a late DEL of an old sandbox cuts the new one off": (
        "kernel/test_attach.py::test_a_late_del_of_an_old_sandbox_does_not_touch_the_new_one",
        "kernel/test_host_ports.py::test_a_new_sandbox_has_the_ports_at_once_and_the_late_del_of_the_old_one_changes_nothing",
    ),
    "an ADD of a known pod's new sandbox hangs": (
        "kernel/test_interfaces.py::test_a_new_sandbox_takes_the_place_of_the_old_one",
        "kernel/test_interfaces.py::test_a_new_sandbox_in_the_same_namespace_gets_the_interface",
    ),
    # --- addresses ---------------------------------------------------------------------------------
    "a restart that sees no pods in the API gives their addresses again": (
        "kernel/test_kube_agent.py::test_a_start_without_the_api_keeps_what_is_there_and_its_return_writes_nothing",
        "kernel/test_restart.py::test_a_restart_of_an_unchanged_node_writes_nothing",
    ),
    "two nodes have one block, empty blocks stay with a node, and nobody says that all are used": (
        "unit/test_claims.py::test_what_another_node_has_meanwhile_is_a_conflict_and_nobody_gives_of_it",
        "unit/test_claims.py::test_of_empty_blocks_one_is_spared",
        "unit/test_allocation.py::test_a_pod_is_told_why_it_gets_none",
        "kernel/test_attach.py::test_exhaustion_names_the_block_and_ends_with_a_release",
    ),
    "the shared record is wiped while agents run, and nodes get other blocks": (
        "unit/test_claims.py::test_a_record_that_was_lost_is_made_again_where_pods_live_in_it",
    ),
    "a Node of which only the pod CIDR changes is ignored": (
        "kernel/test_healing.py::test_a_changed_pod_cidr_is_honoured",
    ),
    "a pod that is replaced at once has the address of the one before": (
        "kernel/test_attach.py::test_an_address_is_not_given_again_at_once",
    ),
    "what was attached can't be told without the runtime's own interface": (
        "kernel/test_restart.py::test_a_lost_store_is_made_again_from_the_kernel",
    ),
    "the answer to an ADD names the network in place of the address": (
        "kernel/test_cnitool.py::test_a_pod_comes_answers_and_goes",
        "unit/test_cni_result.py::test_an_add_is_answered_in_the_version_asked",
    ),
    # --- links -------------------------------------------------------------------------------------
    "pods get 1500 bytes before anybody knows the MTU, or that of another interface": (
        "kernel/test_network_mtu.py::test_pods_have_that_of_the_interface_with_the_node_s_address_and_follow_it",
        "kernel/test_network_mtu.py::test_an_agent_that_comes_before_the_node_s_address_waits_for_it",
        "unit/test_cni_server.py::test_an_add_without_an_mtu_is_to_be_tried_again",
    ),
    "VXLAN's bytes are not taken off the MTU of pods": (
        "kernel/test_tunnels.py::test_devices_come_and_go_with_the_nodes_that_need_them",
        "kernel/test_overlay.py::test_the_largest_packet_of_a_pod_arrives_whole",
    ),
    "another program changes the MAC address of the VXLAN device, and nodes lose each other": (
        "kernel/test_tunnels.py::test_what_others_do_is_told_by_the_kernel_and_undone_at_once",
    ),
    "a delegated interface that is not eth0 is made as eth0": (
        "kernel/test_cnitool.py::test_a_pod_with_two_interfaces",
        "kernel/test_interfaces.py::test_interfaces_of_one_pod_keep_apart",
    ),
    "a namespace and name of more than 64 bytes are refused": (
        "kernel/test_attach.py::test_names_of_any_length_are_attached",
    ),
    "the node's address goes with its DHCP lease, and its pods with it": (
        "kernel/test_node_addresses.py::test_it_goes_and_comes_back",
        "kernel/test_tunnels.py::test_an_address_that_is_away_for_an_instant_moves_no_device_and_no_pod",
    ),
    # --- others' hands -----------------------------------------------------------------------------
    "a network manager that restarts takes routes and rules away": (
        "kernel/test_others_hands.py::test_it_is_noticed_named_and_undone",
    ),
    "a firewall that restarts flushes the rules": (
        "kernel/test_others_hands.py::test_it_is_noticed_named_and_undone",
        "kernel/test_healing.py::test_after_a_flushed_ruleset_an_add_fails_once_and_heals",
    ),
    "rp_filter is changed, and packets are dropped, or pods send in others' names": (
        "kernel/test_others_hands.py::test_it_is_noticed_named_and_undone",
        "kernel/test_healing.py::test_a_pod_cannot_send_in_the_name_of_another",
        "kernel/test_doctor.py::test_loose_reverse_path_filters_are_named",
    ),
    "tables of other programs look like a change of ours": (
        "kernel/test_others_hands.py::test_others_tables_are_no_part_of_ours",
    ),
    "a chained plugin's work is undone": (
        "kernel/test_chains.py::test_portmap_bandwidth_and_tuning_work_and_stay",
        "kernel/test_bandwidth.py::test_another_s_bucket_on_a_pod_s_link_is_left_alone",
    ),
    # --- the plugin --------------------------------------------------------------------------------
    "a plugin that hangs makes the runtime's status hang, and the node goes away": (
        "unit/test_shims_agree.py::test_who_talks_for_ever_is_left_in_time",
        "unit/test_cni_shim.py::test_an_agent_that_does_not_answer_is_away",
        "kernel/test_verbs.py::test_status_is_answered_while_a_resync_of_ten_thousand_services_goes_on",
        "kernel/test_soak.py::test_random_calls_of_many_callers_and_a_killed_agent_leave_nothing",
    ),
    "an installation that is interrupted, or comes while the plugin is executed, leaves half of one": (
        "unit/test_install_safe.py::test_whenever_it_is_killed_there_is_the_older_plugin_or_the_newer",
        "unit/test_install_safe.py::test_the_plugin_works_at_any_moment_of_installations_beside_each_other",
        "unit/test_install_safe.py::test_whenever_a_removal_is_killed_no_configuration_is_left_without_its_plugin",
    ),
    # --- a new pod and Services --------------------------------------------------------------------
    "a pod whose ADD has succeeded can't use Services yet": ("kernel/test_first_packets.py::test_success_means_ready",),
    "the network needs Services to reach the API server, which it is there to make": (
        "cluster/test_smoke.py::test_pods_reach_the_api_server_by_its_service",
        "cluster/test_resilience.py::test_agents_are_killed_while_the_control_plane_is_down",
    ),
    "after a Service the pod behind it, from the same port, is answered with a stale source": (
        "kernel/test_services.py::test_from_one_port_of_a_client_its_service_and_its_own_address_both_lead_to_a_pod",
    ),
    "what a pod sends to a Service bears the node's address": (
        "kernel/test_services.py::test_every_backend_answers_and_sees_the_client",
        "kernel/test_packets.py::test_who_answers_and_which_client_it_sees_or_how_it_is_refused",
    ),
    "a client keeps its socket while the pod behind a port of the node is replaced": (
        "kernel/test_host_ports.py::test_a_client_that_keeps_its_socket_follows_the_port",
    ),
}


@functools.cache
def defined_in(file: str) -> frozenset[str]:
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, functions))


@pytest.mark.parametrize("case", CASES)
def test_what_shows_a_case_is_there(case: str) -> None:
    for test in CASES[case]:
        file, _, name = test.partition("::")
        assert name in defined_in(file), f"{test} has another name now, or has gone"
