//! Random events of the simulation.

use proptest::{option, prelude::*, sample::Index};

use crate::probe::result::{ProbeKind, ProbeResult};

/// What happens.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// We plan, and do it.
    Sync(Option<Fault>),
    /// One that may run ends.
    Exit(Index, i32),
    /// A probe has a result for one that runs.
    ProbeResult(Index, ProbeKind, ProbeResult),
    /// One that was made, and did not start in time, starts after all.
    LateStart(Index),
    /// The runtime loses track of one that runs.
    Vanish(Index),
    /// Time passes, in seconds.
    Wait(u16),
    /// Dead things are removed.
    Garbage,
    /// The sandbox dies, and all that is in it.
    SandboxDies,
    /// A container gets another image.
    Change(Index),
    /// Somebody wants to look around.
    Ephemeral,
    /// We are restarted.
    Restart,
    /// The runtime forgets everything.
    Forget,
    /// The pod is deleted.
    Delete,
}

/// What goes wrong while a plan is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// So many stops work.
    StopAfter(usize),
    /// Nothing can be removed.
    NoRemoval,
    /// No sandbox can be made.
    NoSandbox,
    /// A sandbox is made, and is not ready.
    HalfASandbox,
    /// The image of this start is not there.
    NoImageFor(usize),
    /// The container of this start is made, and does not start.
    OnlyMade(usize),
    /// The container of this start cannot run.
    EndsAtOnce(usize),
}

fn faults() -> impl Strategy<Value = Option<Fault>> {
    let fault = prop_oneof![
        (0..3_usize).prop_map(Fault::StopAfter),
        Just(Fault::NoRemoval),
        Just(Fault::NoSandbox),
        Just(Fault::HalfASandbox),
        (0..3_usize).prop_map(Fault::NoImageFor),
        (0..3_usize).prop_map(Fault::OnlyMade),
        (0..3_usize).prop_map(Fault::EndsAtOnce),
    ];
    option::weighted(0.3, fault)
}

pub(super) fn events() -> impl Strategy<Value = Event> {
    let which = any::<Index>;
    let code = prop_oneof![3 => Just(0), 3 => Just(1), 1 => Just(42)];
    let kind = prop::sample::select(vec![ProbeKind::Startup, ProbeKind::Liveness, ProbeKind::Readiness]);
    let result = prop::sample::select(vec![
        ProbeResult::Unknown,
        ProbeResult::Success,
        ProbeResult::Success,
        ProbeResult::Failure,
    ]);
    prop_oneof![
        20 => faults().prop_map(Event::Sync),
        10 => (which(), code).prop_map(|(which, code)| Event::Exit(which, code)),
        6 => (which(), kind, result).prop_map(|(which, kind, result)| Event::ProbeResult(which, kind, result)),
        5 => (0..400_u16).prop_map(Event::Wait),
        2 => Just(Event::Garbage),
        2 => which().prop_map(Event::Vanish),
        2 => which().prop_map(Event::LateStart),
        1 => Just(Event::SandboxDies),
        1 => which().prop_map(Event::Change),
        1 => Just(Event::Ephemeral),
        1 => Just(Event::Restart),
        1 => prop_oneof![9 => Just(Event::Restart), 1 => Just(Event::Forget)],
        1 => prop_oneof![6 => Just(Event::Restart), 1 => Just(Event::Delete)],
    ]
}
