//! Processes of placement: one leads, and another that did may not know yet that it does not any more.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use vk_kube::{Error, Kind};
use vk_supervisor::Now;

use super::{Scheduled, World, eviction::EvictionLog};
use crate::{
    avoid::AvoidTable,
    effect::{ApiCall, CallId, Effect, Input},
    state_machine::PlacementStateMachine,
};

/// From when a leader may not write any more, it takes this long until its lease has expired.
const GAP: Duration = Duration::from_secs(5);

/// A process of placement.
pub(super) struct Process {
    pub(super) id: u32,
    machine: PlacementStateMachine,
    /// Events that its watches have not delivered yet.
    watch: VecDeque<Input>,
    /// Whether its fence is open.
    leads: bool,
    pub(super) evictions: EvictionLog,
}

impl World {
    /// Starts, or starts again after a crash, with what the API server has.
    pub(in super::super) fn restart(&mut self) {
        self.record(|| "restart".to_owned());
        self.processes.clear();
        self.start();
    }

    /// The leader cannot renew its lease. It goes on for some time behind a closed fence, also when another process leads.
    pub(in super::super) fn replace_leader(&mut self) {
        self.record(|| "the leader cannot renew its lease".to_owned());
        if let Some(leader) = self.processes.last_mut() {
            leader.leads = false;
            let id = leader.id;
            let after = Duration::from_millis(self.rng.random_range(0..30_000));
            self.schedule(after, Scheduled::End(id));
        }
        self.schedule(GAP, Scheduled::Start(self.started));
    }

    pub(super) fn start(&mut self) {
        self.started += 1;
        let mut avoid = AvoidTable::default();
        avoid.load(&self.config_map);
        let rng = StdRng::seed_from_u64(self.rng.random());
        let machine = PlacementStateMachine::new(self.settings.clone(), avoid, rng);
        let mut watch = VecDeque::new();
        let names = self.nodes.keys().map(|name| name.as_str().into()).collect();
        // There are two watches: either may be first.
        let pods_first = self.rng.random_bool(0.5);
        if pods_first {
            watch.extend(self.listed_pods());
        }
        watch.extend(self.nodes.values().map(|node| Input::Node(Box::new(node.clone()))));
        watch.push_back(Input::NodesListed(names));
        if !pods_first {
            watch.extend(self.listed_pods());
        }
        let (id, evictions) = (self.started, EvictionLog::default());
        self.processes.push(Process { id, machine, watch, leads: true, evictions });
        self.schedule(Duration::ZERO, Scheduled::Deliver(id));
    }

    /// The watch of pods breaks: events are lost, and the pods are listed.
    pub(in super::super) fn break_watch(&mut self) {
        let listed = self.listed_pods();
        let Some(leader) = self.processes.last_mut() else { return };
        leader.watch.retain(|input| matches!(input, Input::Node(_) | Input::NodesListed(_)));
        leader.watch.extend(listed);
        let id = leader.id;
        self.schedule(Duration::ZERO, Scheduled::Deliver(id));
    }

    fn listed_pods(&self) -> Vec<Input> {
        let active = self.pods.values().filter(|pod| !vk_provider::pod::is_terminal(pod));
        let pods = active.map(|pod| Input::Pod(Arc::new(Pod::clone(pod))));
        let active = [Input::PodsRestarted].into_iter().chain(pods).chain([Input::PodsListed]);
        active.chain(self.listed_succeeded()).collect()
    }

    pub(super) fn announce(&mut self, input: &Input) {
        for index in 0..self.processes.len() {
            let process = &mut self.processes[index];
            process.watch.push_back(input.clone());
            let (id, delay) = (process.id, self.delay());
            self.schedule(delay, Scheduled::Deliver(id));
        }
    }

    pub(super) fn process(&mut self, id: u32) -> Option<&mut Process> {
        self.processes.iter_mut().find(|process| process.id == id)
    }

    pub(super) fn deliver(&mut self, id: u32) {
        let Some(process) = self.process(id) else { return };
        let inputs: Vec<Input> = process.watch.drain(..).collect();
        if !inputs.is_empty() {
            self.handle(id, inputs);
        }
    }

    pub(super) fn wake(&mut self, id: u32, at: Duration) {
        if self.process(id).is_some_and(|process| process.machine.next_deadline() == Some(at)) {
            self.handle(id, Vec::new());
        }
    }

    pub(super) fn handle(&mut self, id: u32, inputs: Vec<Input>) {
        let now = Now { elapsed: self.now, wall: self.wall() };
        let Some(process) = self.process(id) else { return };
        process.evictions.observe(&inputs);
        let effects = process.machine.handle(now, inputs);
        let deadline = process.machine.next_deadline().filter(|at| *at < Duration::MAX);
        for effect in effects {
            self.act(id, effect);
        }
        if let Some(at) = deadline {
            self.schedule(at.saturating_sub(self.now), Scheduled::Wake(id, at));
        }
    }

    fn act(&mut self, process: u32, effect: Effect) {
        match effect {
            Effect::Ask(id, node, query) => {
                let name = node.metadata.name.as_deref().unwrap();
                let lower = self.lower.get_mut(name).unwrap_or_else(|| panic!("{name} was asked"));
                let answer = lower.answer(&query);
                let uids = |pods: &[Arc<Pod>]| -> Vec<_> {
                    pods.iter().filter_map(|pod| pod.metadata.uid.clone()).collect()
                };
                self.record(|| {
                    format!(
                        "{name} is asked about {:?}, held {:?}: {answer:?}",
                        uids(&query.pods),
                        uids(&query.held)
                    )
                });
                let (answer, delay) = match answer {
                    Some(answer) => (answer, self.delay().min(Duration::from_millis(400))),
                    None => (Err("no answer within 5s".to_owned()), Duration::from_secs(5)),
                };
                let input = Box::new(Input::FitAnswered(id, answer));
                self.schedule(delay, Scheduled::Input(process, input));
            }
            Effect::Call(id, call) => self.send(process, id, call),
            Effect::RecordEvent(pod, _, reason, message) => {
                if self.leads(process) {
                    self.events.push((pod.uid.to_string(), reason, message));
                }
            }
            Effect::Count(_) => {}
        }
    }

    fn send(&mut self, process: u32, id: CallId, call: ApiCall) {
        let reads = matches!(call, ApiCall::ReadJob { .. } | ApiCall::ReadClaims { .. });
        if !reads && !self.leads(process) {
            let refused = Err(Error::new(Kind::Fenced, "another process may lead"));
            let delay = self.delay();
            return self.schedule(delay, Scheduled::Input(process, Box::new(Input::Answered(id, refused))));
        }
        self.record(|| format!("{call:?}"));
        self.writes += u32::from(!reads);
        self.avoid_calls += u32::from(matches!(call, ApiCall::WriteAvoidTable(_)));
        if let ApiCall::Evict { pod, .. } = &call {
            self.check_eviction_limits(process, id, &pod.uid);
        }
        if self.faults.late.is_zero() {
            return self.carry_out(process, id, &call);
        }
        let most = u64::try_from(self.faults.late.as_millis()).unwrap();
        let late = Duration::from_millis(self.rng.random_range(0..=most));
        self.schedule(late, Scheduled::Call(process, id, Box::new(call)));
    }

    /// How often the leader has evaluated a queue.
    pub(in super::super) fn evaluations(&self) -> u64 {
        self.processes.last().map_or(0, |leader| leader.machine.evaluations())
    }

    fn leads(&self, id: u32) -> bool {
        self.processes.iter().any(|process| process.id == id && process.leads)
    }

    /// Whether every pod that loses its gate gets a node selector.
    pub(super) fn pins(&self) -> bool {
        self.settings.gates.as_ref().is_some_and(|gates| gates.pin)
    }
}
