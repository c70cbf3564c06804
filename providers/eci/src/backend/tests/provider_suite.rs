//! The suite for providers with the emulator: with simulated containers on a paused clock, and with processes over TCP.

#![expect(clippy::disallowed_methods, reason = "the tasks of a test end with its runtime")]

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use futures::FutureExt as _;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container, Pod};
use rand::{SeedableRng as _, rngs::StdRng};
use serde_json::{Value, json};
use vk_container_group::{
    budget::{self, Budget},
    cloud::{CachedCredentials, Client, Credentials, Limits, alibaba::Api},
    engine::{Engine, Settings as EngineSettings},
};
use vk_provider::{Config, Context, Provider, Result};
use vk_supervisor::Clock;
use vk_testing::{
    cloud::{
        eci::{AccessKey, Containers, EciEmulator, Options, Settings, Timing},
        vendor,
    },
    conformance::{CaseResult, ContainerBehavior, Feature, PodBehavior, Subject},
};

use super::secrets::{SECRET_KEY, keep_journal_if_asked, trace_if_asked};
use crate::{
    api::{EciApi, VERSION},
    backend::caps,
    config,
    connection::Connection,
};

/// What ECI cannot do, whatever runs in its containers.
const LACKS: [Feature; 6] = [
    Feature::Attach,
    Feature::PortForward,
    Feature::Fit,
    // A container cannot be added to a group.
    Feature::EphemeralContainers,
    // The grace period is that of the create.
    Feature::ShortenGrace,
    Feature::ClosedPorts,
];
/// Nobody reads files in containers that are simulated.
const SIMULATED_LACKS: [Feature; 7] =
    [LACKS[0], LACKS[1], LACKS[2], LACKS[3], LACKS[4], LACKS[5], Feature::Files];

/// Connects to the emulator.
type Connect = fn(&Arc<EciEmulator>, &config::Settings, &Clock) -> Connection;

/// An account of its own for each case.
pub(super) struct EmulatedAccount {
    emulator: Arc<EciEmulator>,
    containers: Containers,
    clock: Clock,
    connect: Connect,
}

// === impl EmulatedAccount ===

impl EmulatedAccount {
    fn new(containers: Containers, clock: Clock, connect: Connect) -> Self {
        let restart = SignedDuration::from_millis(50);
        let settings = Settings { timing: Timing { restart, ..Timing::instant() }, ..Settings::default() };
        trace_if_asked();
        let keys = [("testid".to_owned(), AccessKey::new(SECRET_KEY))].into();
        let options = Options {
            keys,
            settings,
            containers,
            limits_rates: false,
            clock: clock.clone(),
            ..Options::new()
        };
        // To bind a port takes no time.
        let emulator = Arc::new(EciEmulator::start(options).now_or_never().unwrap().unwrap());
        Self { emulator, containers, clock, connect }
    }

    /// Containers are simulated, and connections are in memory.
    pub(super) fn simulated() -> Self {
        let clock = Clock::following_tokio(Timestamp::from_second(1_800_000_000).unwrap());
        Self::new(Containers::Simulated, clock, connect_in_memory)
    }

    /// Containers are processes of this host.
    fn processes() -> Self {
        let connect: Connect = |_, settings, clock| Connection::new(settings, Limits::default(), clock);
        Self::new(Containers::Processes, Clock::system(), connect)
    }

    /// The emulator itself.
    pub(super) fn emulator(&self) -> Arc<EciEmulator> {
        Arc::clone(&self.emulator)
    }

    fn settings(&self) -> config::Settings {
        let config = json!({
            "region": "cn-hangzhou", "vSwitches": ["vsw-a"], "securityGroup": "sg-1", "clusterName": "shop",
            "endpoint": self.emulator.endpoint(), "credentials": "static", "accessKey": "testid",
            "secretKey": SECRET_KEY, "clusterDNS": ["10.96.0.10"],
            "budget": {"requestsPerSecond": 1000, "burst": 1000}, "prices": "cloud",
        });
        config::Settings::read(&Config::Inline(config)).unwrap()
    }
}

impl Drop for EmulatedAccount {
    fn drop(&mut self) {
        keep_journal_if_asked(&self.emulator);
    }
}

/// A paused clock cannot wait for sockets.
fn connect_in_memory(emulator: &Arc<EciEmulator>, settings: &config::Settings, clock: &Clock) -> Connection {
    let emulator = Arc::clone(emulator);
    let client = Client::over(Limits::default(), move || {
        let (ours, theirs) = tokio::io::duplex(1 << 20);
        tokio::spawn(emulator.serve(theirs));
        Box::new(ours)
    });
    // The next process may not repeat the nonces of this one.
    let rng = || StdRng::from_rng(&mut rand::rng());
    let key = Arc::new(Credentials::new("testid", SECRET_KEY));
    let credentials = CachedCredentials::new(key, clock.clone(), rng());
    let endpoint = settings.endpoint.clone();
    let api = Api::new(client.clone(), endpoint, VERSION, credentials.clone(), clock.clone(), rng());
    Connection { client, api: EciApi::new(api, &settings.region), credentials }
}

#[async_trait]
impl Subject for EmulatedAccount {
    async fn open(&self, context: Context) -> Result<Arc<dyn Provider>> {
        let (settings, clock) = (self.settings(), self.clock.clone());
        let mut backend = (self.connect)(&self.emulator, &settings, &clock).backend(&settings, &context);
        // The lists of this emulator are always up to date, so nothing has to be waited for.
        backend.caps.consistency = Duration::ZERO;
        let limits = budget::Limits::new(settings.rate, &caps());
        let budget = Budget::new(&limits, &context.supervisor);
        let mut engine = EngineSettings::new("shop", context.node_name.clone(), "eci");
        engine.node_ips = vec![context.internal_ip];
        engine.capacity = settings.capacity;
        engine.prices = true;
        Ok(Arc::new(Engine::new(Arc::new(backend), engine, budget, clock, &context.supervisor)?))
    }

    /// Many emulators with real containers at once, each of them polled: a busy machine takes its time.
    fn limit(&self) -> Duration {
        Duration::from_mins(2)
    }

    fn lacks(&self) -> &[Feature] {
        match self.containers {
            Containers::Simulated => &SIMULATED_LACKS,
            Containers::Processes => &LACKS,
        }
    }

    fn configure_pod(&self, pod: &mut Pod, behavior: &PodBehavior) {
        let Some(spec) = pod.spec.as_mut() else { return };
        if behavior.containers == ContainerBehavior::UntilKilled {
            // ECI knows only the grace period of the create, and no delete shortens it.
            spec.termination_grace_period_seconds = Some(1);
        }
        if self.containers == Containers::Processes {
            // They run the shell commands of the suite.
            return;
        }
        for (containers, behavior) in [
            (&mut spec.containers, behavior.containers),
            (spec.init_containers.get_or_insert_default(), behavior.init),
        ] {
            for container in containers {
                script(container, behavior);
            }
        }
    }
}

/// What the emulator's simulated containers understand.
fn script(container: &mut Container, behavior: ContainerBehavior) {
    let text = match behavior {
        ContainerBehavior::Ends(code) => format!("echo up; sleep 0.5; exit {code}"),
        ContainerBehavior::UntilStopped | ContainerBehavior::UntilKilled => "echo up; wait".to_owned(),
    };
    container.command = Some(["sh", "-c", &text].map(str::to_owned).to_vec());
    container.args = None;
}

mod simulated {
    vk_testing::conformance!(paused: super::EmulatedAccount::simulated());
}

mod processes {
    vk_testing::conformance!(ignored: "needs root: make test", super::EmulatedAccount::processes());
}

/// What was said in all cases.
fn said_by_the_suite() -> Vec<Value> {
    let (mut journal, mut failed) = (Vec::new(), BTreeMap::new());
    for case in vk_testing::conformance::cases() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        let (result, said) = runtime.unwrap().block_on(async {
            let account = EmulatedAccount::simulated();
            let emulator = Arc::clone(&account.emulator);
            (case.run(Arc::new(account)).await, emulator.journal())
        });
        journal.extend(said);
        if let CaseResult::Violated(violation) = result {
            failed.insert(case.name, violation);
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
    journal
}

#[test]
#[ignore = "needs the vendor SDKs: make test"]
fn the_vendors_models_know_all_that_the_suite_says() {
    let mut journal = said_by_the_suite();
    let actions: BTreeSet<String> =
        journal.iter().map(|entry| entry["action"].as_str().unwrap().to_owned()).collect();
    for action in [
        "CreateContainerGroup",
        "DeleteContainerGroup",
        "DescribeContainerGroupPrice",
        "DescribeContainerGroupStatus",
        "DescribeContainerGroups",
        "DescribeContainerLog",
        "DescribeMultiContainerGroupMetric",
        "ExecContainerCommand",
        "ListUsage",
        "UpdateContainerGroup",
    ] {
        assert!(actions.contains(action), "{action}: {actions:?}");
    }
    let findings = vendor::judge("eci", &journal);
    assert!(findings.is_empty(), "{}", findings.join("\n"));
    // A planted mistake: a name of the create is misspelt.
    let create = journal.iter_mut().find(|entry| entry["action"] == "CreateContainerGroup").unwrap();
    let parameters = create["parameters"].as_object_mut().unwrap();
    let image = parameters.remove("Container.1.Image").unwrap();
    parameters.insert("Container.1.Imgae".to_owned(), image);
    let findings = vendor::judge("eci", &journal);
    assert!(findings.iter().any(|finding| finding.contains("Imgae")), "{findings:?}");
}
