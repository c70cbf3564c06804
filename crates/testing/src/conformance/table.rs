//! All cases, each with its sentence of the contract. A test checks that the contract contains these sentences.

/// Passes the list to another macro of this crate.
#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_cases {
    ($then:ident $($given:tt)*) => {
        $crate::$then! {
            [$($given)*]
            create::a_created_pod_comes_to_run
                "Starts a pod, or adopts it if the backend already has this UID.";
            create::a_second_create_adopts
                "*Idempotent by UID*: a repeated call, also after a crash in the middle, ends with exactly one instance.";
            create::many_pods_are_created_at_once
                "for different pods at the same time, without a limit.";
            create::a_pod_that_can_never_run_is_refused
                "`Invalid` and `Unsupported` fail the pod permanently.";
            create::a_missing_object_is_passed_on_as_unresolved
                "return it from `create_pod`, and the core waits for the object.";
            create::an_error_names_its_pod
                "it names the operation and the object and contains no secrets.";
            identity::pods_of_one_name_are_kept_apart
                "a provider must keep them apart: the older one is often still stopping when the newer one starts.";
            identity::a_delete_leaves_the_namesake_alone
                "A pod of the same name with another UID is a different pod.";
            identity::an_unknown_pod_is_not_found
                "`NotFound` guarantees that nothing of this pod runs; a backend that does not know returns `Unavailable`.";
            identity::a_delete_of_an_unknown_pod_succeeds
                "`NotFound` is success: nothing of this pod runs.";
            identity::an_update_of_an_unknown_pod_is_not_lost
                "`NotFound` makes the core create the pod.";
            identity::the_list_is_complete
                "Must be complete; a backend that cannot list all of them returns an error.";
            identity::a_listed_pod_carries_the_mark_of_its_node
                "Name of the virtual node for which it was created, as recorded in the backend: the ownership mark.";
            identity::the_list_agrees_with_the_status
                "Its current status.";
            delete::a_deleted_pod_ends
                "Begins to stop a pod and returns as soon as stopping has begun; the status shows when it has ended.";
            delete::a_delete_returns_before_the_end
                "Begins to stop a pod and returns as soon as stopping has begun; the status shows when it has ended.";
            delete::a_stopping_pod_is_found_until_it_has_ended
                "`NotFound` guarantees that nothing of this pod runs; a backend that does not know returns `Unavailable`.";
            delete::a_shorter_grace_hastens_the_end
                "*Repeatable*: called again when the grace period is shortened, and after a restart.";
            delete::no_grace_is_at_once
                "Zero means immediately.";
            delete::a_delete_can_be_repeated
                "*Repeatable*: called again when the grace period is shortened, and after a restart.";
            delete::a_delete_needs_no_last_known_pod
                "it is `None` for an orphaned pod that is not in the API server.";
            delete::a_pod_that_has_not_started_can_be_deleted
                "Begins to stop a pod and returns as soon as stopping has begun; the status shows when it has ended.";
            delete::a_deleted_pod_does_not_come_back
                "The core removes the pod from the API server only after [`pod_status`](Self::pod_status) shows every container terminated, or returns `NotFound`.";
            status::every_container_is_in_the_status_once
                "a phase that goes back, containers that the pod does not have, a container in two states at once.";
            status::a_container_is_in_one_state
                "a phase that goes back, containers that the pod does not have, a container in two states at once.";
            status::a_phase_never_goes_back
                "a phase that goes back, containers that the pod does not have, a container in two states at once.";
            status::a_running_container_has_an_id_and_a_start
                "Reports container states, the `ContainersReady` condition, IPs and phase;";
            status::addresses_can_be_read
                "Reports container states, the `ContainersReady` condition, IPs and phase;";
            status::containers_ready_follows_the_containers
                "Reports container states, the `ContainersReady` condition, IPs and phase;";
            status::an_ended_container_says_when
                "Reports container states, the `ContainersReady` condition, IPs and phase;";
            termination::a_pod_that_ends_well_has_succeeded
                "Reports container states, the `ContainersReady` condition, IPs and phase;";
            termination::a_pod_that_ends_badly_has_failed
                "Reports container states, the `ContainersReady` condition, IPs and phase;";
            termination::success_is_not_restarted_on_failure
                "for one start: call it again for each restart, but not for an update.";
            termination::always_restarts_and_counts
                "for one start: call it again for each restart, but not for an update.";
            termination::a_failure_is_restarted_on_failure
                "for one start: call it again for each restart, but not for an update.";
            termination::a_restart_count_never_falls
                "Reports container states, the `ContainersReady` condition, IPs and phase;";
            termination::init_containers_come_first
                "One container of a pod: regular, init or ephemeral.";
            termination::a_failed_init_container_fails_the_pod
                "One container of a pod: regular, init or ephemeral.";
            restart::pods_are_found_again
                "All pods that the backend runs for this node: the truth after a restart,";
            restart::a_create_in_the_next_process_adopts
                "then `create_pod` for every pod bound to the node, and then cleans up.";
            restart::an_unknown_pod_is_left_alone
                "a provider never stops a pod because it does not know its UID.";
            restart::a_delete_goes_on_in_the_next_process
                "*Repeatable*: called again when the grace period is shortened, and after a restart.";
            update::new_labels_leave_the_containers_alone
                "Applies a changed spec to a running pod: image, resources, ephemeral containers, labels, annotations";
            update::a_repeated_update_changes_nothing
                "*Idempotent*: the bundle is the whole desired state, not a difference, and the newest one wins.";
            update::the_newest_update_wins
                "*Idempotent*: the bundle is the whole desired state, not a difference, and the newest one wins.";
            update::a_new_image_runs_or_is_refused
                "`Invalid` and `Unsupported` leave the pod running unchanged, with an event and a condition.";
            update::new_resources_are_taken_or_refused
                "`Invalid` and `Unsupported` leave the pod running unchanged, with an event and a condition.";
            update::an_ephemeral_container_joins_or_is_refused
                "Applies a changed spec to a running pod: image, resources, ephemeral containers, labels, annotations";
            abandon::an_abandoned_create_can_be_deleted
                "every call must be safe to abandon at any await and to repeat later, in another process, by the UID alone.";
            abandon::an_abandoned_create_can_be_repeated
                "every call must be safe to abandon at any await and to repeat later, in another process, by the UID alone.";
            abandon::an_abandoned_delete_can_be_repeated
                "every call must be safe to abandon at any await and to repeat later, in another process, by the UID alone.";
            changes::a_poll_has_a_period
                "The provider cannot push: the core calls [`Provider::pod_status`](crate::Provider::pod_status) at about this interval,";
            changes::a_start_is_told
                "The pod changed: read its status.";
            changes::an_end_is_told
                "The pod changed: read its status.";
            changes::the_end_of_a_deleted_pod_is_told
                "The pod changed: read its status.";
            changes::a_told_status_is_the_status
                "The pod's current status.";
            node::a_ping_is_answered
                "Called every few seconds, never concurrently, and abandoned after a timeout.";
            node::the_node_is_described_the_same_each_time
                "always with a fresh template, so set everything each time. Must be quick and without side effects.";
            node::the_node_has_capacity
                "Total resources of the node, by name (`cpu`, `memory`, `pods`, ...).";
            node::no_more_is_allocatable_than_there_is
                "Resources that pods may use. Defaults to the capacity for each resource that is not listed.";
            node::readiness_is_left_to_ping
                "The core sets Ready from [`Provider::ping`](crate::Provider::ping).";
            ability::abilities_are_as_declared
                "Each is a trait with an accessor in [`Provider`] that returns `None` if the backend does not support it.";
            logs::the_log_of_a_running_container_can_be_read
                "Any number may be open at a time; dropping the stream closes it.";
            logs::the_log_of_nobody_is_not_found
                "`NotFound` for a pod or container that the backend does not have, or for `previous` without an earlier instance;";
            logs::there_is_no_log_before_the_first
                "`NotFound` for a pod or container that the backend does not have, or for `previous` without an earlier instance;";
            logs::a_followed_log_ends_with_its_container
                "With `follow` the stream ends when the container has ended.";
            logs::a_final_log_has_its_options_applied
                "All options are applied: the server forwards the bytes.";
            exec::a_command_has_output_and_a_code
                "Resolves when the process has ended; the streams may still contain unread output.";
            exec::a_command_reads_its_input
                "Standard input; shut down at the end of input.";
            exec::a_command_for_nobody_is_not_found
                "`NotFound` for a pod or container that the backend does not have, `Unavailable` for one that is not running,";
            exec::a_command_in_an_ended_container_is_unavailable
                "`NotFound` for a pod or container that the backend does not have, `Unavailable` for one that is not running,";
            exec::a_dropped_session_leaves_the_container_alone
                "Dropping the session closes them, and kills the process where the backend can.";
            exec::a_container_gets_its_environment
                "Environment, command and arguments of a container, resolved and expanded, for one start:";
            addresses::a_variable_has_the_address_of_the_pod
                "Until then no container starts with the value: the provider resolves it again";
            addresses::an_address_inside_a_value_is_filled_in_or_refused
                "passes the field on to a backend that has field references, or refuses the pod.";
            files::every_kind_of_volume_has_its_files
                "a complete set as soon as it is available,";
            files::a_file_has_its_mode
                "Permission bits, such as `0o644`.";
            files::a_renewed_token_replaces_its_file
                "then a new complete set for each change.";
            secrets::a_secret_becomes_a_variable
                "Environment, command and arguments of a container, resolved and expanded, for one start:";
            secrets::pull_credentials_are_for_the_images_of_the_pod
                "Registry credentials from the pod's `imagePullSecrets` that match the image, best match first;";
            secrets::nothing_secret_is_shown
                "Nothing of it may be in a status, event, annotation, error or log of the provider.";
            attach::a_detached_container_goes_on
                "Attaches to the container's main process, which keeps running when the session ends.";
            attach::attaching_to_nobody_is_not_found
                "Errors as for [`Exec::start`].";
            port_forward::a_port_that_listens_is_reached
                "Opens one connection to a port inside the pod.";
            port_forward::a_closed_port_is_unavailable
                "`NotFound` for an unknown pod, `Unavailable` if nothing listens on the port.";
            port_forward::a_port_of_nobody_is_not_found
                "`NotFound` for an unknown pod, `Unavailable` if nothing listens on the port.";
            stats::figures_name_their_pods
                "Current usage of the node and its pods.";
            fit::every_pod_gets_one_verdict
                "One verdict for each of `pods`, in their order.";
            fit::a_pod_that_no_node_can_have_does_not_fit
                "Where the provider cannot be sure it says [`Verdict::Unknown`] and never guesses.";
            fit::a_cause_has_one_text
                "The same cause always has the same text, but for amounts";
            fit::pods_before_take_room
                "Each pod is evaluated as if the pods before it that were not refused,";
            fit::held_pods_take_room
                "and all of `held`, were present, and the pods with the UIDs `without` were gone.";
            fit::pods_to_be_without_leave_room
                "and all of `held`, were present, and the pods with the UIDs `without` were gone.";
            fit::a_held_pod_that_the_node_has_counts_once
                "A pod of `held` that the node already has counts once.";
            fit::a_question_changes_nothing
                "Answers from memory, at once and without side effects.";
            fit::the_best_lower_nodes_are_different_ones
                "The lower nodes that come closest to taking the pod, best first: at most `count`, and what is free on each of them now.";
        }
    };
}
