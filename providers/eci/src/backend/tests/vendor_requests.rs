//! What the backend sends, and what the vendor's SDK sends for the same.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    time::Duration,
};

use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use serde_json::{Value, json};
use vk_container_group::{
    backend::{Creation, GroupBackend as _, GroupRef, LogRange, Owner, Plan, Scope, Size, Update},
    cloud::Limits,
    identity::{self, Identity},
    plan::policy::sample,
};
use vk_provider::{Config, Context, PodRef, Quantity, ability::ExecOptions};
use vk_supervisor::Clock;
use vk_testing::cloud::eci::{self, EciEmulator, Options, SentRequest, Timing};

use crate::{
    api::EciApi,
    backend::{EciBackend, caps},
    config::Settings,
    connection::Connection,
    translate::EciRequest,
};

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/golden");

/// An emulator, and a backend that calls it over TCP.
struct Fixture {
    emulator: EciEmulator,
    api: EciApi,
    backend: EciBackend,
}

// === impl Fixture ===

impl Fixture {
    async fn new() -> Self {
        let mut options = Options { limits_rates: false, ..Options::new() };
        options.settings.timing = Timing::instant();
        let emulator = EciEmulator::start(options).await.unwrap();
        let settings = Settings::read(&Config::Inline(json!({
            "region": "cn-hangzhou", "vSwitches": ["vsw-a", "vsw-b"], "securityGroup": "sg-1", "clusterName": "shop",
            "resourceGroup": "rg-1", "endpoint": emulator.endpoint(), "credentials": "static", "accessKey": "testid",
            "secretKey": "testsecret", "clusterDNS": ["10.96.0.10"], "prices": "cloud",
        })));
        let settings = settings.unwrap();
        let context = Context {
            node_name: "eci".to_owned(),
            internal_ip: "127.0.0.1".parse().unwrap(),
            kubelet_port: 10250,
            operating_system: "linux".to_owned(),
            cluster_domain: "cluster.local".to_owned(),
            cluster: None,
            state_dir: "unused".into(),
            shared_dir: "unused".into(),
            extensions: vk_provider::Extensions::new(),
            supervisor: vk_supervisor::Supervisor::new(),
        };
        let connection = Connection::new(&settings, Limits::default(), &Clock::system());
        let api = connection.api.clone();
        Self { api, backend: connection.backend(&settings, &context), emulator }
    }

    /// Creates a group for the plan, and returns it with the request that arrived.
    async fn create(&self, number: usize, plan: &Plan<EciRequest>) -> (GroupRef, SentRequest) {
        let uid = format!("00000000-0000-4000-8000-{number:012}");
        let owner = Owner {
            cluster: "shop".into(),
            node: "eci".into(),
            pod: PodRef::new("shop", "web", uid),
            attempt: 1,
            spec_hash: None,
        };
        let name = identity::name(&owner.pod.uid, owner.attempt);
        let tags = Identity::new(Vec::new(), caps().tags).unwrap().tags(&owner);
        let token = format!("token-{number}");
        let creation = Creation {
            plan,
            owner: &owner,
            name: &name,
            tags: &tags,
            token: &token,
            placement: plan.placements.first(),
        };
        let group = self.backend.create(&creation).await.unwrap().unwrap();
        (group, self.emulator.last_request("CreateContainerGroup").unwrap())
    }

    fn plan(&self, pod: Pod) -> Plan<EciRequest> {
        self.backend.translate(&sample::resolved(pod)).unwrap()
    }
}

/// The golden pods with the requests that are expected for them, by file.
fn golden() -> BTreeMap<String, (Pod, BTreeMap<String, String>)> {
    let files = fs::read_dir(GOLDEN).unwrap().map(|entry| entry.unwrap().path());
    files
        .map(|file| {
            let golden: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
            let pod = serde_json::from_value(golden["pod"].clone()).unwrap();
            let request = serde_json::from_value(golden["expected"]["request"].clone()).unwrap();
            (file.display().to_string(), (pod, request))
        })
        .collect()
}

/// Fails with all that is different between ours and what the vendor's SDK sends for it.
fn compare(requests: &[(String, SentRequest)]) {
    let asked: Vec<(&str, &BTreeMap<String, String>)> =
        requests.iter().map(|(action, request)| (action.as_str(), &request.parameters)).collect();
    for ((action, ours), vendors) in requests.iter().zip(eci::vendor_requests(&asked)) {
        let vendors = vendors.unwrap_or_else(|lost| panic!("{action}: the vendor does not know {lost}"));
        assert_eq!(eci::differences(ours, &vendors), Vec::<String>::new(), "{action} {ours:?}");
    }
}

#[tokio::test]
#[ignore = "needs the vendor SDKs: make test"]
async fn golden_pods_are_sent_as_the_vendors_sdk_sends_them() {
    let fixture = Fixture::new().await;
    let mut requests = Vec::new();
    for (number, (file, (pod, expected))) in golden().into_iter().enumerate() {
        let plan = fixture.plan(pod);
        let (_, sent) = fixture.create(number, &plan).await;
        for (name, value) in expected {
            assert_eq!(sent.parameters.get(&name), Some(&value), "{file}: {name}");
        }
        requests.push(("CreateContainerGroup".to_owned(), sent));
    }
    assert!(requests.len() > 5);
    compare(&requests);
    eci::judge(&fixture.emulator);

    // Planted mistakes in what we send: a misspelt name, another value, a header that is missing.
    let (_, ours) = requests.swap_remove(0);
    let mut misspelt = ours.parameters.clone();
    let image = misspelt.remove("Container.1.Image").unwrap();
    misspelt.insert("Container.1.Imgae".to_owned(), image);
    let lost = eci::vendor_requests(&[("CreateContainerGroup", &misspelt)]).remove(0).unwrap_err();
    assert!(lost.contains("Container.1.Imgae"), "{lost}");
    let vendors = eci::vendor_requests(&[("CreateContainerGroup", &ours.parameters)]).remove(0).unwrap();
    let mut other = ours.clone();
    other.parameters.insert("Container.1.Image".to_owned(), "other".to_owned());
    other.headers.remove("x-acs-content-sha256");
    assert_eq!(eci::differences(&other, &vendors).len(), 2);
}

#[tokio::test]
#[ignore = "needs the vendor SDKs: make test"]
async fn every_other_call_is_sent_as_the_vendors_sdk_sends_it() {
    let fixture = Fixture::new().await;
    let Fixture { emulator, backend, .. } = &fixture;
    let (pod, _) = golden().remove(&format!("{GOLDEN}/smallest.json")).unwrap();
    let plan = fixture.plan(pod);
    let (group, _) = fixture.create(0, &plan).await;
    let groups = std::slice::from_ref(&group);
    vk_testing::eventually("the group runs", Duration::from_secs(30), || async {
        let found = backend.detail(groups).await.unwrap();
        let state = found.first().and_then(|one| one.state);
        if state == Some(vk_container_group::backend::GroupState::Running) {
            Ok(())
        } else {
            Err(format!("{state:?}"))
        }
    })
    .await;
    let said = Mutex::new(Vec::new());
    let note = |action: &str| said.lock().push((action.to_owned(), emulator.last_request(action).unwrap()));
    note("DescribeContainerGroups");
    let scope = Scope { cluster: "shop".into(), node: Some("eci".into()), name: None };
    // Two groups on pages of one, and then those of the Go provider.
    fixture.create(1, &plan).await;
    fixture.api.set_page(1);
    let (mut page, mut pages) = (None::<String>, 0);
    loop {
        page = backend.observe(&scope, page.as_deref()).await.unwrap().next;
        note("DescribeContainerGroups");
        pages += 1;
        if page.is_none() {
            break;
        }
    }
    assert_eq!(pages, 3);
    let named = Scope { name: Some((*group.name).into()), ..scope.clone() };
    assert_eq!(backend.observe(&named, None).await.unwrap().groups.len(), 1);
    note("DescribeContainerGroups");
    backend.changes(&scope, Duration::from_mins(1), None).await.unwrap();
    note("DescribeContainerGroupStatus");
    backend.changes(&scope, Duration::from_mins(1), Some("events:")).await.unwrap();
    note("DescribeContainerGroupEvents");
    backend.probe().await.unwrap();
    note("ListUsage");
    backend.stats(groups).await.unwrap();
    note("DescribeMultiContainerGroupMetric");
    let range = LogRange { tail: Some(10), since: Some(emulator.now()), previous: false };
    backend.logs(&group, "web", &range).await.unwrap();
    note("DescribeContainerLog");
    let options = ExecOptions { stdin: true, stdout: true, stderr: true, tty: false };
    backend.exec(&group, "web", &["cat".to_owned()], &options).await.unwrap();
    note("ExecContainerCommand");
    for instance_type in [None, Some("ecs.c6.xlarge".to_owned())] {
        let size = Size { cpu: Quantity::units(4), memory: Quantity::bytes(8 << 30), instance_type };
        backend.price(&size).await.unwrap().unwrap();
        note("DescribeContainerGroupPrice");
    }
    backend.dry_run(&plan).await.unwrap();
    note("CreateContainerGroup");
    backend
        .update(&group, &Update { plan: &plan, tags: &[("vk-layout".to_owned(), "1".to_owned())] })
        .await
        .unwrap();
    note("UpdateContainerGroup");
    backend.delete(&group, Duration::from_secs(30)).await.unwrap();
    note("DeleteContainerGroup");
    compare(&said.lock());
    let noted: BTreeSet<String> = said.lock().iter().map(|(action, _)| action.clone()).collect();
    assert_eq!(noted, emulator.calls().into_keys().collect(), "no call is left out");
    eci::judge(emulator);
}
