//! Random events of the simulation.

use proptest::{option, prelude::*, sample::Index};

use crate::probe::result::{ProbeKind, ProbeResult};

/// An event.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// A plan is computed and executed.
    Sync(Option<Fault>),
    /// A container exits.
    Exit(Index, i32),
    /// A probe of a running container has a result.
    ProbeResult(Index, ProbeKind, ProbeResult),
    /// A created container whose start timed out starts late.
    LateStart(Index),
    /// The runtime loses track of a running container.
    Vanish(Index),
    /// Time passes, in seconds.
    Wait(u16),
    /// Garbage is removed.
    Garbage,
    /// The sandbox dies with its containers.
    SandboxDies,
    /// A container gets another image.
    Change(Index),
    /// An ephemeral container is added.
    Ephemeral,
    /// The engine restarts.
    Restart,
    /// The runtime loses its state.
    Forget,
    /// The pod is deleted.
    Delete,
}

/// A fault while a plan is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Only this many stops succeed.
    StopAfter(usize),
    /// Nothing can be removed.
    NoRemoval,
    /// The sandbox cannot be created.
    NoSandbox,
    /// The sandbox is created and not ready.
    HalfASandbox,
    /// The image of this start is missing.
    NoImageFor(usize),
    /// The container of this start is created and does not start.
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
