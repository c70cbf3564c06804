//! The suite itself: a provider that keeps the contract passes, and each violation of it is found by the case that is for it
//! and by no other.
//!
//! The clock is paused, so that a rule which is broken by nothing happening costs no time.

mod broken;
mod bystander;
mod fault;
mod inputs;
mod plain;
mod report;

use std::{collections::BTreeSet, sync::Arc};

use async_trait::async_trait;
use k8s_openapi::api::core::v1::Pod;
use vk_provider::{Context, Provider, Result};
use vk_provider_mock::{ANNOTATION_PREFIX, PodHost};
use vk_testing::conformance::{
    Case, CaseResult, ContainerBehavior, Feature, PodBehavior, Subject, cases, check,
};

use self::{broken::Broken, fault::Fault, plain::Plain};

/// The mock with a fault, and what is said to be missing.
struct Faulty {
    host: PodHost,
    fault: Fault,
    lacks: Vec<Feature>,
}

#[async_trait]
impl Subject for Faulty {
    async fn open(&self, context: Context) -> Result<Arc<dyn Provider>> {
        Ok(Arc::new(Broken::new(&context.node_name, self.host.clone(), self.fault)))
    }

    fn lacks(&self) -> &[Feature] {
        &self.lacks
    }

    fn configure_pod(&self, pod: &mut Pod, life: &PodBehavior) {
        let mut set = |name: &str, value: &str| {
            let annotations = pod.metadata.annotations.get_or_insert_default();
            annotations.insert(format!("{ANNOTATION_PREFIX}{name}"), value.to_owned());
        };
        set("restart-backoff", "500ms");
        match life.containers {
            ContainerBehavior::UntilStopped => {}
            ContainerBehavior::UntilKilled => set("stop-delay", "24h"),
            ContainerBehavior::Ends(code) => {
                set("run-for", "1s");
                set("exit-code", &code.to_string());
            }
        }
        if let ContainerBehavior::Ends(code) = life.init {
            set("init-run-for", "1s");
            set("init-exit-code", &code.to_string());
        }
    }

    fn port(&self) -> Option<u16> {
        Some(80)
    }
}

/// The result of every case on subjects like this.
async fn results<S: Subject>(subject: impl Fn() -> S) -> Vec<(&'static Case, CaseResult)> {
    let mut results = Vec::new();
    for case in cases() {
        results.push((case, case.run(Arc::new(subject())).await));
    }
    results
}

/// The cases that fail, by name.
fn failed(results: &[(&'static Case, CaseResult)]) -> BTreeSet<&'static str> {
    let failed = results.iter().filter(|(_, result)| matches!(result, CaseResult::Violated(_)));
    failed.map(|(case, _)| case.name).collect()
}

fn faulty(fault: Fault) -> impl Fn() -> Faulty {
    move || Faulty { host: PodHost::default(), fault, lacks: Vec::new() }
}

/// Makes a test of each fault: exactly these cases find it.
macro_rules! found_by {
    ($($test:ident: $fault:ident => [$($case:ident),* $(,)?];)*) => {
        $(
            #[tokio::test(start_paused = true)]
            async fn $test() {
                let results = results(faulty(Fault::$fault)).await;
                let expected = BTreeSet::from([$(stringify!($case)),*]);
                let told: Vec<_> = results.iter().filter(|(_, result)| matches!(result, CaseResult::Violated(_))).collect();
                assert_eq!(failed(&results), expected, "{told:#?}");
            }
        )*

        /// Every fault that is listed here, with the cases that find it.
        const FOUND: &[(Fault, &[&str])] = &[$((Fault::$fault, &[$(stringify!($case)),*])),*];
    };
}

found_by! {
    a_provider_that_keeps_the_contract_passes: None => [];

    a_second_start_is_found: StartsAgain => [a_second_create_adopts, a_create_in_the_next_process_adopts];
    a_second_instance_is_found: ListsEveryCreate => [a_second_create_adopts, an_abandoned_create_can_be_repeated];
    lost_creates_are_found: LosesConcurrentCreates => [many_pods_are_created_at_once];
    a_pod_that_cannot_run_and_is_accepted_is_found: AcceptsAnything => [a_pod_that_can_never_run_is_refused];
    what_a_refused_pod_leaves_is_found: LeavesWhatItRefused => [a_pod_that_can_never_run_is_refused];
    a_hidden_unresolved_is_found: HidesWhatIsUnresolved => [a_missing_object_is_passed_on_as_unresolved];
    errors_that_say_nothing_are_found: SaysNothingInErrors => [an_error_names_its_pod];

    keys_by_name_are_found: KeysByName => [
        pods_of_one_name_are_kept_apart,
        a_delete_leaves_the_namesake_alone,
        an_unknown_pod_is_not_found,
    ];
    a_delete_by_name_is_found: DeletesByName => [a_delete_leaves_the_namesake_alone];
    an_unknown_pod_that_is_pending_is_found: CallsTheUnknownPending => [
        an_unknown_pod_is_not_found,
        a_delete_can_be_repeated,
    ];
    a_failed_delete_of_the_unknown_is_found: FailsToDeleteTheUnknown => [
        a_delete_of_an_unknown_pod_succeeds,
        a_delete_can_be_repeated,
    ];
    a_lost_update_is_found: LosesUpdatesOfTheUnknown => [an_update_of_an_unknown_pod_is_not_lost];
    a_list_that_is_cut_is_found: ListsTwoAtMost => [
        the_list_is_complete,
        many_pods_are_created_at_once,
        an_abandoned_create_can_be_repeated,
    ];
    other_names_in_a_list_are_found: ListsOtherNames => [the_list_is_complete, pods_are_found_again];
    a_missing_mark_is_found: ForgetsTheMark => [a_listed_pod_carries_the_mark_of_its_node, pods_are_found_again];
    a_mark_that_is_lost_at_restart_is_found: ForgetsTheMarkAtRestart => [pods_are_found_again];
    a_list_unlike_the_status_is_found: ListsAnotherPhase => [the_list_agrees_with_the_status];

    a_delete_that_waits_is_found: WaitsForTheEnd => [
        a_delete_returns_before_the_end,
        a_stopping_pod_is_found_until_it_has_ended,
        a_shorter_grace_hastens_the_end,
        a_delete_goes_on_in_the_next_process,
        pods_of_one_name_are_kept_apart,
    ];
    a_pod_that_is_forgotten_too_early_is_found: ForgetsWhileStopping => [a_stopping_pod_is_found_until_it_has_ended];
    a_grace_that_stays_is_found: KeepsTheFirstGrace => [
        a_shorter_grace_hastens_the_end,
        an_abandoned_delete_can_be_repeated,
    ];
    a_zero_that_is_not_at_once_is_found: TakesZeroForAnHour => [
        no_grace_is_at_once,
        an_abandoned_delete_can_be_repeated,
    ];
    a_delete_that_works_once_is_found: DeletesOnce => [
        a_delete_can_be_repeated,
        a_shorter_grace_hastens_the_end,
        an_abandoned_delete_can_be_repeated,
    ];
    a_delete_that_needs_the_pod_is_found: NeedsTheLastKnown => [
        a_delete_needs_no_last_known_pod,
        a_delete_of_an_unknown_pod_succeeds,
    ];
    a_pod_that_never_started_and_stays_is_found: KeepsWhatNeverStarted => [
        a_pod_that_has_not_started_can_be_deleted,
        an_abandoned_create_can_be_deleted,
    ];
    a_deleted_pod_that_comes_back_is_found: BringsBackTheDeleted => [a_deleted_pod_does_not_come_back];

    a_container_that_is_left_out_is_found: LeavesOutAContainer => [every_container_is_in_the_status_once];
    a_container_too_many_is_found: AddsAContainer => [every_container_is_in_the_status_once];
    two_states_at_once_are_found: IsInTwoStates => [a_container_is_in_one_state];
    a_phase_that_goes_back_is_found: GoesBackToPending => [a_phase_never_goes_back];
    one_id_for_all_is_found: GivesOneIdToAll => [
        a_running_container_has_an_id_and_a_start,
        always_restarts_and_counts,
        a_failure_is_restarted_on_failure,
    ];
    a_start_without_a_time_is_found: DoesNotSaySince => [a_running_container_has_an_id_and_a_start];
    an_address_that_is_none_is_found: ReportsNoAddress => [addresses_can_be_read];
    a_missing_condition_is_found: LeavesOutContainersReady => [containers_ready_follows_the_containers];
    a_condition_that_always_holds_is_found: IsAlwaysReady => [containers_ready_follows_the_containers];
    an_end_before_the_start_is_found: EndsBeforeTheStart => [an_ended_container_says_when];

    a_wrong_exit_code_is_found: CallsEveryCodeOne => [
        a_pod_that_ends_badly_has_failed,
        a_failed_init_container_fails_the_pod,
    ];
    a_failure_called_success_is_found: CallsFailureSuccess => [
        a_pod_that_ends_badly_has_failed,
        a_failed_init_container_fails_the_pod,
    ];
    a_success_called_failure_is_found: CallsSuccessFailure => [
        a_pod_that_ends_well_has_succeeded,
        success_is_not_restarted_on_failure,
    ];
    missing_restarts_are_found: NeverRestarts => [
        always_restarts_and_counts,
        a_failure_is_restarted_on_failure,
        a_restart_count_never_falls,
    ];
    a_restart_too_many_is_found: RestartsSuccess => [success_is_not_restarted_on_failure];
    a_lost_count_is_found: LosesTheCount => [a_restart_count_never_falls];
    skipped_init_containers_are_found: SkipsInitContainers => [
        init_containers_come_first,
        a_failed_init_container_fails_the_pod,
    ];

    pods_that_are_lost_at_restart_are_found: ForgetsPodsAtRestart => [pods_are_found_again];
    a_second_start_after_a_restart_is_found: StartsAgainAtRestart => [a_create_in_the_next_process_adopts];
    a_killer_of_the_unknown_is_found: KillsTheUnknown => [an_unknown_pod_is_left_alone];
    a_delete_that_is_lost_at_restart_is_found: ForgetsDeletesAtRestart => [
        a_delete_goes_on_in_the_next_process,
    ];

    needless_restarts_are_found: RestartsAtEveryUpdate => [
        new_labels_leave_the_containers_alone,
        a_repeated_update_changes_nothing,
        an_ephemeral_container_joins_or_is_refused,
    ];
    ignored_updates_are_found: IgnoresUpdates => [
        a_new_image_runs_or_is_refused,
        the_newest_update_wins,
        an_ephemeral_container_joins_or_is_refused,
    ];
    an_old_update_that_wins_is_found: KeepsTheFirstUpdate => [the_newest_update_wins];
    a_refused_update_that_stops_is_found: StopsWhenRefusing => [a_new_image_runs_or_is_refused];
    a_resize_that_stops_is_found: StopsAtResize => [new_resources_are_taken_or_refused];
    a_dropped_ephemeral_container_is_found: DropsEphemeralContainers => [
        an_ephemeral_container_joins_or_is_refused,
    ];

    a_lock_that_a_dropped_create_leaves_is_found: LocksWhileCreating => [
        an_abandoned_create_can_be_deleted,
        an_abandoned_create_can_be_repeated,
    ];
    a_lock_that_a_dropped_delete_leaves_is_found: LocksWhileDeleting => [an_abandoned_delete_can_be_repeated];

    a_poll_without_pause_is_found: PollsWithoutPause => [a_poll_has_a_period];
    silence_is_found: PushesNothing => [
        a_start_is_told,
        an_end_is_told,
        the_end_of_a_deleted_pod_is_told,
        a_told_status_is_the_status,
    ];
    silence_about_starts_is_found: PushesNoStarts => [a_start_is_told, a_told_status_is_the_status];
    silence_about_ends_is_found: PushesNoEnds => [an_end_is_told, the_end_of_a_deleted_pod_is_told];
    a_push_unlike_the_status_is_found: PushesOtherCounts => [a_told_status_is_the_status];

    a_ping_that_hangs_is_found: HangsInPing => [a_ping_is_answered];
    a_ping_that_fails_is_found: FailsInPing => [a_ping_is_answered];
    a_node_that_changes_is_found: CountsDescriptions => [the_node_is_described_the_same_each_time];
    a_node_without_memory_is_found: HasNoMemory => [the_node_has_capacity];
    a_node_that_offers_too_much_is_found: OffersMoreThanThereIs => [no_more_is_allocatable_than_there_is];
    a_ready_condition_is_found: SetsReady => [readiness_is_left_to_ping];

    an_ability_that_is_not_there_is_found: HasNoLogs => [
        abilities_are_as_declared,
        the_log_of_a_running_container_can_be_read,
        the_log_of_nobody_is_not_found,
        there_is_no_log_before_the_first,
        a_followed_log_ends_with_its_container,
        a_final_log_has_its_options_applied,
    ];
    a_log_of_nobody_is_found: LogsForNobody => [the_log_of_nobody_is_not_found];
    a_log_without_times_is_found: LogsWithoutTimes => [the_log_of_a_running_container_can_be_read];
    a_log_without_end_is_found: LogsWithoutEnd => [a_followed_log_ends_with_its_container];
    a_log_before_the_first_is_found: TakesCurrentForPrevious => [there_is_no_log_before_the_first];
    an_ignored_tail_is_found: IgnoresTail => [a_final_log_has_its_options_applied];
    an_exit_code_that_is_always_zero_is_found: ExitsWithZero => [a_command_has_output_and_a_code];
    dropped_input_is_found: DropsInput => [a_command_reads_its_input];
    a_command_for_nobody_is_found: ExecutesForNobody => [a_command_for_nobody_is_not_found];
    a_wrong_error_for_an_ended_container_is_found: ExecutesInTheDead => [
        a_command_in_an_ended_container_is_unavailable,
    ];
    a_session_that_ends_the_container_is_found: EndsTheContainerWithTheSession => [
        a_dropped_session_leaves_the_container_alone,
    ];
    a_forgotten_environment_is_found: ForgetsTheEnvironment => [
        a_container_gets_its_environment,
        a_secret_becomes_a_variable,
        a_variable_has_the_address_of_the_pod,
        an_address_inside_a_value_is_filled_in_or_refused,
    ];
    lost_secret_files_are_found: LosesSecretFiles => [
        every_kind_of_volume_has_its_files,
        a_file_has_its_mode,
        a_renewed_token_replaces_its_file,
    ];
    ignored_modes_are_found: IgnoresModes => [a_file_has_its_mode];
    old_tokens_are_found: KeepsOldTokens => [a_renewed_token_replaces_its_file];
    lost_secret_variables_are_found: LosesSecretVariables => [a_secret_becomes_a_variable];
    a_missing_address_is_found: StartsWithoutAddress => [
        a_variable_has_the_address_of_the_pod,
        an_address_inside_a_value_is_filled_in_or_refused,
    ];
    credentials_for_other_images_are_found: AsksForOtherImages => [
        pull_credentials_are_for_the_images_of_the_pod,
    ];
    secrets_that_are_shown_are_found: ShowsSecrets => [nothing_secret_is_shown];
    a_detach_that_ends_the_container_is_found: EndsTheContainerWhenDetached => [a_detached_container_goes_on];
    an_attachment_to_nobody_is_found: AttachesToNobody => [attaching_to_nobody_is_not_found];
    a_port_that_is_never_reached_is_found: RefusesEveryPort => [a_port_that_listens_is_reached];
    a_closed_port_that_is_reached_is_found: DialsClosedPorts => [a_closed_port_is_unavailable];
    a_wrong_error_for_a_port_of_nobody_is_found: DialsForNobody => [a_port_of_nobody_is_not_found];
    missing_figures_are_found: MeasuresNothing => [figures_name_their_pods];
    missing_verdicts_are_found: FitsOnlyTheFirst => [every_pod_gets_one_verdict];
    a_fit_of_everything_is_found: FitsEverything => [
        every_pod_gets_one_verdict,
        a_pod_that_no_node_can_have_does_not_fit,
    ];
    a_text_that_changes_is_found: CountsRefusals => [a_cause_has_one_text];
    forgotten_pods_before_are_found: ForgetsPodsBefore => [pods_before_take_room];
    forgotten_held_pods_are_found: ForgetsTheHeld => [held_pods_take_room];
    pods_that_stay_although_gone_are_found: KeepsThoseToBeWithout => [pods_to_be_without_leave_room];
    a_held_pod_that_counts_twice_is_found: CountsTheHeldTwice => [a_held_pod_that_the_node_has_counts_once];
    a_question_that_books_is_found: BooksWhatIsAsked => [
        a_question_changes_nothing,
        pods_to_be_without_leave_room,
    ];
    a_node_that_is_named_twice_is_found: RepeatsTheBestNodes => [the_best_lower_nodes_are_different_ones];
}

#[tokio::test(start_paused = true)]
async fn a_provider_that_starts_or_stops_nothing_passes_little() {
    for (fault, case) in
        [(Fault::NeverStarts, "a_created_pod_comes_to_run"), (Fault::NeverStops, "a_deleted_pod_ends")]
    {
        let subject = Arc::new(faulty(fault)());
        let CaseResult::Violated(violation) = Case::named(case).unwrap().run(subject).await else {
            panic!("{case} does not find {fault:?}")
        };
        assert!(violation.seen.contains("not within 30s"), "{violation}");
    }
}

#[test]
fn every_case_finds_something() {
    let found = FOUND.iter().flat_map(|(_, cases)| cases.iter().copied());
    let other = ["a_created_pod_comes_to_run", "a_deleted_pod_ends"];
    let found: BTreeSet<&str> = found.chain(other).collect();
    let all: BTreeSet<&str> = cases().iter().map(|case| case.name).collect();
    assert_eq!(found, all);
    assert!(FOUND.iter().all(|(fault, cases)| cases.is_empty() == (*fault == Fault::None)));
}

#[tokio::test(start_paused = true)]
async fn a_failure_names_the_rule_what_was_seen_and_what_to_do() {
    let case = Case::named("a_listed_pod_carries_the_mark_of_its_node").unwrap();
    let result = case.run(Arc::new(faulty(Fault::ForgetsTheMark)())).await;
    let CaseResult::Violated(violation) = result else { panic!("{result:?}") };
    assert_eq!(
        case.report(&violation),
        "the provider violates a rule of the contract: a_listed_pod_carries_the_mark_of_its_node (identity)\n  \
         rule: Name of the virtual node for which it was created, as recorded in the backend: the ownership mark.\n  \
         seen: the pod was created for node \"conformance\" and is listed with None\n  \
         do:   record the node's name (Context::node_name) with the pod in the backend, and list it"
    );
}

#[tokio::test(start_paused = true)]
async fn an_ability_that_is_there_and_said_to_be_missing_is_found() {
    let subject = || Faulty { lacks: vec![Feature::Stats], ..faulty(Fault::None)() };
    let results = results(subject).await;
    let expected = BTreeSet::from(["abilities_are_as_declared", "figures_name_their_pods"]);
    assert_eq!(failed(&results), expected, "{results:#?}");
    let Some((_, CaseResult::Violated(violation))) =
        results.iter().find(|(case, _)| case.name == "figures_name_their_pods")
    else {
        panic!("{results:#?}")
    };
    assert_eq!(violation.seen, "the subject declares no stats but the provider has them");
}

#[tokio::test(start_paused = true)]
async fn other_features_that_are_there_and_said_to_be_missing_are_found() {
    for (feature, case) in [
        (Feature::InitContainers, "init_containers_come_first"),
        (Feature::EphemeralContainers, "an_ephemeral_container_joins_or_is_refused"),
        (Feature::Survival, "pods_are_found_again"),
    ] {
        let subject = Faulty { lacks: vec![feature], ..faulty(Fault::None)() };
        let result = Case::named(case).unwrap().run(Arc::new(subject)).await;
        assert!(matches!(result, CaseResult::Violated(_)), "{feature}: {result:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_plain_provider_lacks_does_not_apply_and_the_rest_passes() {
    let results = results(Plain::subject).await;
    assert_eq!(failed(&results), BTreeSet::new(), "{results:#?}");
    let reasons: BTreeSet<&str> = results
        .iter()
        .filter_map(|(_, result)| match result {
            CaseResult::DoesNotApply(why) => Some(why.as_str()),
            _ => None,
        })
        .collect();
    let expected = [
        "the provider has no attach",
        "the provider has no containers that exit",
        "the provider has no ephemeral containers",
        "the provider has no Secrets",
        "the provider has no exec",
        "the provider has no files in volumes",
        "the provider has no fit",
        "the provider has no init containers",
        "the provider has no logs",
        "the provider has no pods that outlive the process",
        "the provider has no port-forward",
        "the provider has no stats",
        "the provider is polled and does not push",
        "the provider refuses new images",
    ];
    assert_eq!(reasons, BTreeSet::from(expected));
    let passed = results.iter().filter(|(_, result)| *result == CaseResult::Passed).count();
    assert!(passed > 30, "only {passed} cases apply");
}

#[test]
#[should_panic(expected = "rule: Name of the virtual node for which it was created")]
fn a_test_that_the_macro_makes_fails_with_the_report() {
    check("a_listed_pod_carries_the_mark_of_its_node", faulty(Fault::ForgetsTheMark));
}

#[test]
#[should_panic(expected = "the provider panicked: a fault of the provider")]
fn a_provider_that_panics_breaks_the_rule() {
    check("a_ping_is_answered", faulty(Fault::PanicsInPing));
}

mod plain_by_macro {
    vk_testing::conformance!(super::plain::Plain::subject());
}
