//! The emulator, as the vendor's SDK and its models see it.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::SignedDuration;
use serde_json::{Value, json};
use vk_eci_emulator::{AccessKey, EciEmulator, Fault, Options, Rule, Timing};
use vk_testing::cloud::{eci, vendor};

use crate::caller::{call, create, simulated};

/// What the peer understood, by step.
async fn peer() -> (EciEmulator, BTreeMap<String, Value>) {
    peer_with(None).await
}

/// The same with something wrong.
async fn peer_with(planted: Option<Rule>) -> (EciEmulator, BTreeMap<String, Value>) {
    let mut options = Options::new();
    options.settings.timing = Timing::instant();
    // Long enough for another call.
    options.settings.timing.pulling = SignedDuration::from_millis(500);
    let now = options.clock.now();
    let temporary = |expires| AccessKey::new("testsecret").with_token("token", expires);
    options.keys.insert("temporary".to_owned(), temporary(now + SignedDuration::from_hours(1)));
    options.keys.insert("expired".to_owned(), temporary(now));
    let emulator = EciEmulator::start(options).await.unwrap();
    if let Some(rule) = planted {
        emulator.add_fault(rule);
    }
    let endpoint = emulator.endpoint();
    let lines = tokio::task::spawn_blocking(move || vendor::run("peer.py", &["eci", &endpoint], &[]));
    let lines = tokio::time::timeout(Duration::from_mins(2), lines).await.unwrap().unwrap();
    let steps = lines.iter().map(|line| {
        let line: Value = serde_json::from_str(line).unwrap();
        (line["step"].as_str().unwrap().to_owned(), line)
    });
    (emulator, steps.collect())
}

/// How many groups the SDK has not found on the pages that it read, of all that the first one counts.
fn missing_from_pages(steps: &BTreeMap<String, Value>) -> u64 {
    let page = |step: &str| &steps[step]["answer"];
    let pages = ["first page", "second page"].map(|step| page(step)["ContainerGroups"].as_array().unwrap());
    let ids: BTreeSet<&str> =
        pages.into_iter().flatten().map(|group| group["ContainerGroupId"].as_str().unwrap()).collect();
    page("first page")["TotalCount"].as_u64().unwrap() - ids.len() as u64
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the vendor SDKs: make test"]
async fn a_lost_page_is_noticed() {
    let lost = Rule::always(Fault::LostPage).of("DescribeContainerGroups").on_page(2);
    let (_, steps) = peer_with(Some(lost)).await;
    assert_eq!(missing_from_pages(&steps), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the vendor SDKs: make test"]
async fn the_vendors_sdk_understands_every_answer_and_every_error() {
    let (emulator, steps) = peer().await;
    let answer = |step: &str| &steps.get(step).unwrap_or_else(|| panic!("no step {step}"))["answer"];
    let error = |step: &str| steps[step]["error"].as_str().unwrap_or("none").to_owned();

    let id = &answer("create")["ContainerGroupId"];
    assert_eq!(&answer("create again")["ContainerGroupId"], id, "the token makes it the same");
    let described = &answer("describe")["ContainerGroups"][0];
    assert_eq!(&described["ContainerGroupId"], id);
    let sent = &steps["create"]["sent"];
    for (shown, given) in [
        ("ContainerGroupName", "ContainerGroupName"),
        ("RestartPolicy", "RestartPolicy"),
        ("SecurityGroupId", "SecurityGroupId"),
        ("SpotStrategy", "SpotStrategy"),
        ("RamRoleName", "RamRoleName"),
        ("EphemeralStorage", "EphemeralStorage"),
        ("Tags", "Tag"),
    ] {
        assert_eq!(described[shown], sent[given], "{shown}");
    }
    let (shown, given) = (&described["Containers"], &sent["Container"]);
    for (index, name) in ["main", "second"].into_iter().enumerate() {
        assert_eq!(shown[index]["Name"], name);
        assert_eq!(shown[index]["Commands"], given[index]["Command"]);
        assert_eq!(shown[index]["Args"], given[index]["Arg"]);
        assert_eq!(shown[index]["Ports"], given[index]["Port"]);
        assert_eq!(shown[index]["CurrentState"]["State"], "Running");
        assert_eq!(shown[index]["EnvironmentVars"], json!([]), "hidden");
    }
    assert_eq!(described["InitContainers"][0]["CurrentState"]["ExitCode"], 0);
    assert_eq!(described["Volumes"][0]["ConfigFileVolumeConfigFileToPaths"][0]["Content"], "aGVsbG8=");
    assert_eq!(described["Volumes"][4]["NFSVolumeServer"], "nas");

    assert_eq!(missing_from_pages(&steps), 0);
    assert_eq!(answer("first page")["ContainerGroups"].as_array().unwrap().len(), 20);
    assert_eq!(answer("first page")["TotalCount"], 23);
    assert_eq!(answer("second page")["NextToken"], "");
    assert_eq!(answer("by tag")["Data"].as_array().unwrap().len(), 1);
    let status = &answer("by tag")["Data"][0]["PodStatus"];
    assert_eq!(status["Phase"], "Running");
    assert!(status["ContainerStatuses"][0]["State"]["Running"]["StartedAtstartedAt"].is_string());
    assert_eq!(answer("status")["TotalCount"], 23);
    assert_eq!(answer("events")["Data"][0]["Events"][0]["Reason"], "Scheduled");
    assert_eq!(answer("log")["Content"], "hello\n");
    assert_eq!(answer("exec stream"), &json!({"1": "ping\n"}));
    assert_eq!(answer("exec end")["1"], "out\n");
    let end: Value = serde_json::from_str(answer("exec end")["3"].as_str().unwrap()).unwrap();
    assert_eq!(end["details"]["causes"][0]["message"], "3");
    assert_eq!(answer("exec sync")["SyncResponse"], "hi\n");
    assert_eq!(answer("metric")["Records"][0]["Containers"].as_array().unwrap().len(), 2);
    assert_eq!(&answer("metrics")["MonitorDatas"][0]["ContainerGroupId"], id);
    assert_eq!(answer("price")["PriceInfo"]["Price"]["OriginalPrice"], 0.000_034);
    assert_eq!(answer("price")["PriceInfo"]["SpotPrices"]["SpotPrice"].as_array().unwrap().len(), 3);
    assert_eq!(answer("price of type")["PriceInfo"]["Price"]["TradePrice"], 0.000_034);
    assert!(answer("usage")["Attributes"]["UsedCpu"].as_f64().unwrap() > 40.0);
    assert_eq!(answer("regions")["Regions"][0]["RegionId"], "cn-hangzhou");
    assert_eq!(answer("available")["AvailableZones"]["AvailableZone"].as_array().unwrap().len(), 3);
    assert_eq!(answer("tags")["TagResources"].as_array().unwrap().len(), 3);
    for step in ["update", "restart", "delete", "tag", "untag", "temporary"] {
        assert!(answer(step)["RequestId"].is_string(), "{step}: {:?}", steps[step]);
    }
    for (step, code) in [
        ("update early", "IncorrectStatus"),
        ("delete again", "ContainerGroup.NotFound"),
        ("other token", "IdempotentParameterMismatch"),
        ("dry run", "DryRunOperation"),
        ("bad name", "InvalidParameter.ContainerGroupName"),
        ("bad vswitch", "InvalidVSwitchId.NotFound"),
        ("bad group", "InvalidSecurityGroupId.NotFound"),
        ("bad size", "InvalidParameter.CPU.Memory"),
        ("bad region", "InvalidRegionId.NotFound"),
        ("bad page", "InvalidParameter.NextToken"),
        ("no container", "MissingContainerName"),
        ("wrong key", "InvalidAccessKeyId.NotFound"),
        ("wrong secret", "SignatureDoesNotMatch"),
        ("wrong token", "InvalidSecurityToken.MismatchWithAccessKey"),
        ("expired token", "InvalidSecurityToken.Expired"),
    ] {
        assert_eq!(error(step), code, "{step}");
    }
    eci::judge(&emulator);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the vendor SDKs: make test"]
async fn the_emulator_understands_a_request_with_every_field_as_the_vendor_has_sent_it() {
    let (emulator, steps) = peer().await;
    let sent = &steps["create"]["sent"];
    // The group of the peer is deleted: its request is in the journal, masked, and is compared by its paths.
    let journal = emulator.journal();
    let entry = journal.iter().find(|entry| entry["action"] == "CreateContainerGroup").unwrap();
    let mut expected = BTreeMap::new();
    flatten("", sent, &mut expected);
    let arrived: BTreeMap<String, String> = entry["parameters"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(path, value)| (path.clone(), value.as_str().unwrap().to_owned()))
        .collect();
    assert_eq!(arrived.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    assert!(arrived.len() > 150, "{}", arrived.len());
    for (path, value) in arrived.iter().filter(|(_, value)| *value != "***") {
        assert_eq!(value.to_lowercase(), expected[path].to_lowercase(), "{path}");
    }
}

fn flatten(path: &str, value: &Value, into: &mut BTreeMap<String, String>) {
    let join = |part: &str| if path.is_empty() { part.to_owned() } else { format!("{path}.{part}") };
    match value {
        Value::Object(map) => map.iter().for_each(|(key, value)| flatten(&join(key), value, into)),
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                flatten(&join(&(index + 1).to_string()), item, into);
            }
        }
        Value::String(text) => {
            into.insert(path.to_owned(), text.clone());
        }
        other => {
            into.insert(path.to_owned(), other.to_string());
        }
    }
}

#[test]
#[ignore = "needs the vendor SDKs: make test"]
fn the_table_of_parameters_is_that_of_the_vendors_models() {
    let printed = vendor::run("parameters.py", &["eci"], &[]);
    let table = include_str!("../../src/schema/parameters.txt");
    let kept: Vec<&str> = table.lines().collect();
    assert_eq!(
        printed, kept,
        "write it anew: dev/vendor-sdks/parameters.py eci > crates/eci-emulator/src/schema/parameters.txt"
    );
}

#[expect(clippy::needless_pass_by_value, reason = "literals are easier to read without references")]
fn entry(action: &str, parameters: Value, response: Value) -> Value {
    json!({"action": action, "parameters": parameters, "status": 200, "response": response, "faulty": false})
}

#[test]
#[ignore = "needs the vendor SDKs: make test"]
fn the_judge_finds_planted_mistakes() {
    let log = "DescribeContainerLog";
    let good = json!({"ContainerGroupId": "eci-1", "ContainerName": "main", "Tail": "10"});
    let said = json!({"RequestId": "1", "ContainerName": "main", "Content": "***"});
    assert_eq!(vendor::judge("eci", &[entry(log, good.clone(), said.clone())]), Vec::<String>::new());
    let with = |base: &Value, name: &str, value: Value| {
        let mut changed = base.clone();
        changed[name] = value;
        changed
    };
    for (parameters, response, finding) in [
        (with(&good, "Tails", json!("10")), said.clone(), "DescribeContainerLogRequest.Tails"),
        (with(&good, "Tail", json!("ten")), said.clone(), "DescribeContainerLogRequest.Tail: not int"),
        (with(&good, "ContainerName.1", json!("x")), said.clone(), "both a value and an object"),
        (good.clone(), with(&said, "Contents", json!("x")), "DescribeContainerLogResponse.Contents"),
        (good.clone(), with(&said, "Content", json!(3)), "DescribeContainerLogResponse.Content: int"),
        (good.clone(), with(&said, "Content", json!(["x"])), "DescribeContainerLogResponse.Content: list"),
    ] {
        let findings = vendor::judge("eci", &[entry(log, parameters, response)]);
        assert!(findings.iter().any(|found| found.contains(finding)), "{finding}: {findings:?}");
    }
    let nested = json!({"RegionId": "r", "ContainerGroupName": "vk-1", "Container.1.EnvironmentVar.2.Key": "a", "Container.1.EnvVar.1.Key": "a"});
    let findings = vendor::judge("eci", &[entry("CreateContainerGroup", nested, json!({"RequestId": "1"}))]);
    assert!(
        findings.iter().any(|found| found.contains("Container.1.EnvVar: the vendor does not know it")),
        "{findings:?}"
    );
    assert!(
        findings.iter().any(|found| found.contains("EnvironmentVar: dict, the vendor has a list")),
        "{findings:?}"
    );
    let status = json!({"RequestId": "1", "TotalCount": "1", "Data": [{"ContainerGroupID": "eci-1", "Status": "Running"}]});
    let findings =
        vendor::judge("eci", &[entry("DescribeContainerGroupStatus", json!({"RegionId": "r"}), status)]);
    assert_eq!(findings.len(), 2, "{findings:?}");
    let unknown = vendor::judge("eci", &[entry("DescribeContainers", json!({}), json!({}))]);
    assert_eq!(unknown, ["DescribeContainers: the vendor does not know this action"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the vendor SDKs: make test"]
async fn the_judge_sees_what_callers_and_faults_did() {
    let emulator = simulated().await;
    create(&emulator, "vk-1", &[]).await;
    emulator.add_fault(Rule::once("DescribeContainerGroups", Fault::UnknownFields));
    call(&emulator, "DescribeContainerGroups", &[]).await;
    eci::judge(&emulator);
    call(&emulator, "DescribeContainerGroups", &[("Statuses", "Running")]).await;
    let findings = vendor::judge("eci", &emulator.journal());
    assert_eq!(findings, ["DescribeContainerGroupsRequest.Statuses: the vendor does not know it"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the vendor SDKs: make test"]
async fn the_vendors_sdk_sends_the_same_request_for_a_golden_pod() {
    let emulator = simulated().await;
    create(
        &emulator,
        "vk-1",
        &[("Container.1.Cpu", "0.50"), ("Container.1.Tty", "true"), ("Tag.1.Key", "k"), ("Tag.1.Value", "")],
    )
    .await;
    let arrived = emulator.last_request("CreateContainerGroup").unwrap();
    let mut ours = arrived.clone();
    // This client signs with the older scheme, whose parameters are not those of the call.
    let of_scheme = ["Action", "Version", "Format", "AccessKeyId", "Timestamp"];
    ours.parameters.retain(|name, _| !name.starts_with("Signature") && !of_scheme.contains(&name.as_str()));
    let vendors = eci::vendor_requests(&[("CreateContainerGroup", &ours.parameters)]).remove(0).unwrap();
    ours.headers.clone_from(&vendors.headers);
    assert_eq!(eci::differences(&ours, &vendors), Vec::<String>::new());
    assert_eq!(vendors.headers["x-acs-action"], "CreateContainerGroup");
    // Planted mistakes.
    ours.headers.insert("x-acs-version".to_owned(), "2018-08-09".to_owned());
    ours.headers.remove("x-acs-signature-nonce");
    ours.parameters.insert("Container.1.Cpu".to_owned(), "0.51".to_owned());
    assert_eq!(eci::differences(&ours, &vendors).len(), 3);
    ours.parameters.insert("Container.1.CPU".to_owned(), "1".to_owned());
    let lost = eci::vendor_requests(&[("CreateContainerGroup", &ours.parameters)]).remove(0);
    assert!(lost.unwrap_err().contains("Container.1.CPU"));
}
