//! `explain-pod` and `groups`, with their exit codes, and `dev`.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use serde_json::Value;
use vk_testing::{ControlPlane, cloud::eci::EciEmulator, eventually};

use super::{EciNode, LATER, simulated};
use crate::vk;

/// Creates a group whose pod does not exist, marked as those of the node.
fn orphan(emulator: &EciEmulator) -> String {
    let group = emulator.groups().remove(0);
    let request = emulator.request(&group.id).unwrap();
    let mut parameters = BTreeMap::from([
        ("RegionId".to_owned(), "cn-hangzhou".to_owned()),
        ("ContainerGroupName".to_owned(), "vk-orphaned".to_owned()),
        ("Container.1.Name".to_owned(), "main".to_owned()),
        ("Container.1.Image".to_owned(), "busybox:1".to_owned()),
    ]);
    let uid = "00000000-1111-4222-8333-444444444444";
    for (index, tag) in request["Tag"].as_array().unwrap().iter().enumerate() {
        let key = tag["Key"].as_str().unwrap();
        let value = tag["Value"].as_str().unwrap();
        let is_uid = value.len() == uid.len() && value.bytes().filter(|byte| *byte == b'-').count() == 4;
        parameters.insert(format!("Tag.{}.Key", index + 1), key.to_owned());
        parameters.insert(format!("Tag.{}.Value", index + 1), if is_uid { uid } else { value }.to_owned());
    }
    emulator.create(&parameters.into_iter().collect::<Vec<_>>()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs root: make test"]
async fn explain_pod_and_groups_say_what_is_paid_for() {
    let node = EciNode::start(ControlPlane::shared().await, "commands").await;
    let config = node.config();
    let config = config.to_str().unwrap();
    let common = ["--provider", "eci", "--provider-config", config];
    let folder = tempfile::TempDir::new().unwrap();
    let manifest = |name: &str, pod: &Value| {
        let path = folder.path().join(name);
        std::fs::write(&path, pod.to_string()).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let good = node.pod("good", "sleep 3600");
    let mut bad = node.pod("bad", "sleep 3600");
    bad["spec"]["hostNetwork"] = true.into();
    let (good_file, bad_file) = (manifest("good.json", &good), manifest("bad.json", &bad));
    let explain = |arguments: &[&str]| {
        let all = [&["explain-pod"], &common[..], arguments].concat();
        tokio::task::block_in_place(|| vk(&all).run())
    };
    let outcome = explain(&["-f", &good_file, "--ask-cloud"]);
    assert_eq!(outcome.code, 0, "{outcome:?}");
    assert!(outcome.stdout.contains("USD/h"), "{outcome:?}");
    let outcome = explain(&["-f", &bad_file]);
    assert_eq!(outcome.code, 1, "{outcome:?}");
    assert!(outcome.stdout.contains("hostNetwork"), "{outcome:?}");
    assert_eq!(explain(&["-f", "/no/such/file"]).code, 2);
    assert!(node.emulator.groups().is_empty(), "explaining creates nothing");

    node.apply(&good).await;
    node.ready("good").await;
    let kubeconfig = node.cluster.admin_kubeconfig().to_str().unwrap();
    let groups = |arguments: &[&str]| {
        let all = [&["groups", "--kubeconfig", kubeconfig], &common[..], arguments].concat();
        tokio::task::block_in_place(|| vk(&all).run())
    };
    let lists = |text: &str, id: &str| text.lines().any(|line| line.contains(id));
    let group = node.emulator.groups().remove(0);
    let outcome = groups(&[]);
    assert_eq!(outcome.code, 0, "{outcome:?}");
    assert!(lists(&outcome.stdout, &group.id) && outcome.stdout.contains("/good"), "{outcome:?}");
    // The node's own process removes it too, but only when it was seen twice.
    let orphan = orphan(&node.emulator);
    let outcome = groups(&["--orphaned"]);
    assert!(lists(&outcome.stdout, &orphan) && !lists(&outcome.stdout, &group.id), "{outcome:?}");
    let outcome = groups(&["--remove", &group.id]);
    assert_ne!(outcome.code, 0, "its pod exists: {outcome:?}");
    let outcome = groups(&["--remove", &orphan]);
    assert_eq!(outcome.code, 0, "{outcome:?}");
    eventually("the orphan is gone", LATER, || async {
        let groups = node.emulator.groups();
        if groups.len() == 1 && groups[0].id == group.id { Ok(()) } else { Err(format!("{groups:?}")) }
    })
    .await;
    node.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn doctor_knows_the_cluster_as_the_node_does() {
    let cluster = ControlPlane::shared().await;
    let emulator = simulated().await;
    let folder = tempfile::TempDir::new().unwrap();
    // The three required keys, and how to reach the emulator.
    let config = |more: &str| {
        let path = folder.path().join("eci.yaml");
        let text = format!(
            "region: cn-hangzhou\nvSwitches: [vsw-a]\nsecurityGroup: sg-1\nendpoint: {}\n{more}",
            emulator.endpoint()
        );
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let doctor = |config: &str, kubeconfig: &str| {
        let arguments =
            ["doctor", "--provider", "eci", "--provider-config", config, "--kubeconfig", kubeconfig];
        let run = vk(&arguments).env("ECI_ACCESS_KEY", "testid").env("ECI_SECRET_KEY", "testsecret");
        tokio::task::block_in_place(|| run.run())
    };
    let minimal = config("");
    let outcome = doctor(&minimal, cluster.admin_kubeconfig().to_str().unwrap());
    assert_eq!((outcome.code, outcome.stderr.as_str()), (0, ""), "{outcome:?}");
    let namespaces: Api<Namespace> = Api::all(cluster.admin().unwrap());
    let system = namespaces.get("kube-system").await.unwrap().metadata.uid.unwrap();
    for words in ["ok       cluster: ", &system, "vSwitch vsw-a", "permission to delete: granted"] {
        assert!(outcome.stdout.contains(words), "{words}: {}", outcome.stdout);
    }
    // Who may not read the namespace is told so, and what to do.
    let nobody = folder.path().join("nobody");
    cluster.write_kubeconfig(&nobody, "nobody", &[]).unwrap();
    let nobody = nobody.to_str().unwrap();
    let outcome = doctor(&minimal, nobody);
    assert_eq!(outcome.code, 1, "{outcome:?}");
    let line = |what: &str| outcome.stdout.lines().find(|line| line.contains(what)).unwrap().to_owned();
    assert!(line("error    cluster: ").contains("clusterName"), "{outcome:?}");
    assert!(line("warning  cluster id: ").contains("kube-system"), "{outcome:?}");
    // With a name in the configuration it is not missed.
    let outcome = doctor(&config("clusterName: shop\n"), nobody);
    assert_eq!(outcome.code, 0, "{outcome:?}");
    assert!(!outcome.stdout.contains("cluster id"), "{outcome:?}");
    assert!(emulator.groups().is_empty(), "nothing is created");
}
