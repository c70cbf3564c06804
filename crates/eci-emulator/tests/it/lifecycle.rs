//! The states of groups.

use std::{
    sync::Arc,
    sync::atomic::{AtomicI64, Ordering},
};

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use vk_eci_emulator::{EciEmulator, Options, StockCheck};
use vk_supervisor::Clock;

use crate::caller::{call, create, describe, group, simulated, until};

/// An emulator whose time stands still until the test moves it.
struct Timed {
    emulator: EciEmulator,
    seconds: Arc<AtomicI64>,
}

impl Timed {
    async fn start(change: impl FnOnce(&mut Options)) -> Self {
        let seconds = Arc::new(AtomicI64::new(1_800_000_000));
        let now = Arc::clone(&seconds);
        let clock = Clock::new(move || Timestamp::from_second(now.load(Ordering::Relaxed)).unwrap());
        let mut options = Options { clock, limits_rates: false, ..Options::new() };
        change(&mut options);
        Self { emulator: EciEmulator::start(options).await.unwrap(), seconds }
    }

    fn pass(&self, seconds: i64) {
        self.seconds.fetch_add(seconds, Ordering::Relaxed);
    }

    async fn status(&self, id: &str) -> String {
        describe(&self.emulator, id).await["Status"].as_str().unwrap_or("none").to_owned()
    }
}

fn names(list: &Value) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|group| group["ContainerGroupName"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_group_is_scheduled_pulls_runs_and_is_deleted() {
    let timed = Timed::start(|_| {}).await;
    let id = create(
        &timed.emulator,
        "vk-1",
        &[
            ("Container.1.ReadinessProbe.TcpSocket.Port", "80"),
            ("Container.1.ReadinessProbe.InitialDelaySeconds", "4"),
        ],
    )
    .await;
    assert_eq!(timed.status(&id).await, "Scheduling");
    timed.pass(2);
    assert_eq!(timed.status(&id).await, "Pending");
    timed.pass(3);
    let running = describe(&timed.emulator, &id).await;
    assert_eq!(running["Status"], "Running");
    assert_eq!(running["Containers"][0]["CurrentState"]["State"], "Running");
    assert_eq!(running["Containers"][0]["Ready"], false);
    assert_eq!(running["InternetIp"], Value::Null);
    assert!(running["IntranetIp"].is_string());
    timed.pass(4);
    assert_eq!(describe(&timed.emulator, &id).await["Containers"][0]["Ready"], true);
    let reasons: Vec<_> =
        running["Events"].as_array().unwrap().iter().map(|event| event["Reason"].clone()).collect();
    assert_eq!(reasons, ["EciCreated", "Scheduled", "Pulling", "Pulled", "Created", "Started"]);
    assert_eq!(call(&timed.emulator, "DeleteContainerGroup", &[("ContainerGroupId", &id)]).await.status, 200);
    assert_eq!(timed.status(&id).await, "Terminating");
    assert_eq!(call(&timed.emulator, "DeleteContainerGroup", &[("ContainerGroupId", &id)]).await.status, 200);
    timed.pass(2);
    assert_eq!(timed.status(&id).await, "none");
    let again = call(&timed.emulator, "DeleteContainerGroup", &[("ContainerGroupId", &id)]).await;
    assert_eq!((again.status, again.code()), (404, "ContainerGroup.NotFound".to_owned()));
    let bill = &timed.emulator.bills()[0];
    assert!((bill.seconds(timed.emulator.now()) - 11.0).abs() < 0.01, "{bill:?}");
}

#[tokio::test]
async fn containers_end_and_restart_as_the_policy_says() {
    for (policy, code, status) in [
        ("Never", "0", "Succeeded"),
        ("Never", "3", "Failed"),
        ("OnFailure", "0", "Succeeded"),
        ("OnFailure", "3", "Running"),
        ("Always", "0", "Running"),
    ] {
        let timed = Timed::start(|_| {}).await;
        let script = format!("echo hello; exit {code}");
        let id = create(
            &timed.emulator,
            "vk-1",
            &[
                ("RestartPolicy", policy),
                ("Container.1.Command.1", "sh"),
                ("Container.1.Command.2", "-c"),
                ("Container.1.Arg.1", &script),
            ],
        )
        .await;
        timed.pass(5);
        let group = describe(&timed.emulator, &id).await;
        assert_eq!(group["Status"], status, "{policy} {code}");
        let container = &group["Containers"][0];
        if status == "Running" {
            assert_eq!(container["CurrentState"]["Reason"], "CrashLoopBackOff");
            assert_eq!(container["PreviousState"]["ExitCode"], code.parse::<i64>().unwrap());
            assert_eq!(container["RestartCount"], 1);
            timed.pass(11);
            assert_eq!(describe(&timed.emulator, &id).await["Containers"][0]["RestartCount"], 2);
        } else {
            assert_eq!(container["CurrentState"]["ExitCode"], code.parse::<i64>().unwrap());
            let bill = &timed.emulator.bills()[0];
            assert!(bill.to.is_some(), "an ended group is not billed");
        }
    }
}

#[tokio::test]
async fn init_containers_run_first_and_one_by_one() {
    let timed = Timed::start(|_| {}).await;
    let init = |number: usize, command: &'static str| {
        [
            (format!("InitContainer.{number}.Name"), format!("init-{number}")),
            (format!("InitContainer.{number}.Image"), "busybox".to_owned()),
            (format!("InitContainer.{number}.Command.1"), "sleep".to_owned()),
            (format!("InitContainer.{number}.Command.2"), command.to_owned()),
        ]
    };
    let parameters = [init(1, "5"), init(2, "7")].concat();
    let parameters: Vec<(&str, &str)> =
        parameters.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let id = create(&timed.emulator, "vk-1", &parameters).await;
    timed.pass(5);
    let group = describe(&timed.emulator, &id).await;
    assert_eq!(group["Status"], "Pending");
    assert_eq!(group["InitContainers"][0]["CurrentState"]["State"], "Running");
    assert_eq!(group["InitContainers"][1]["CurrentState"]["State"], "Waiting");
    assert_eq!(group["Containers"][0]["CurrentState"]["State"], "Waiting");
    timed.pass(5);
    assert_eq!(describe(&timed.emulator, &id).await["InitContainers"][1]["CurrentState"]["State"], "Running");
    timed.pass(7);
    assert_eq!(timed.status(&id).await, "Running");
}

#[tokio::test]
async fn a_client_token_creates_one_group() {
    let emulator = simulated().await;
    let first = create(&emulator, "vk-1", &[("ClientToken", "token")]).await;
    assert_eq!(create(&emulator, "vk-1", &[("ClientToken", "token")]).await, first);
    let other = call(&emulator, "CreateContainerGroup", &group("vk-2", &[("ClientToken", "token")])).await;
    assert_eq!(other.code(), "IdempotentParameterMismatch");
    assert_ne!(create(&emulator, "vk-1", &[]).await, first);
    assert_eq!(emulator.groups().len(), 2);
}

#[tokio::test]
async fn pages_hold_each_group_once_while_groups_are_created() {
    let emulator = simulated().await;
    for number in 0..45 {
        create(&emulator, &format!("vk-{number}"), &[]).await;
    }
    let (mut found, mut token) = (Vec::new(), String::new());
    let mut pages = 0;
    loop {
        let page = call(&emulator, "DescribeContainerGroups", &[("NextToken", &token)]).await.json();
        found.extend(names(&page["ContainerGroups"]).into_iter().map(str::to_owned));
        page["NextToken"].as_str().unwrap().clone_into(&mut token);
        pages += 1;
        if token.is_empty() {
            break;
        }
        create(&emulator, &format!("vk-late-{pages}"), &[]).await;
    }
    found.sort();
    found.dedup();
    assert_eq!((pages, found.len()), (3, 45));
    let refused = call(&emulator, "DescribeContainerGroups", &[("NextToken", "nonsense")]).await;
    assert_eq!(refused.code(), "InvalidParameter.NextToken");
    let status = call(&emulator, "DescribeContainerGroupStatus", &[("Limit", "40")]).await.json();
    let token = status["NextToken"].as_str().unwrap();
    let foreign = call(&emulator, "DescribeContainerGroups", &[("NextToken", token)]).await;
    assert_eq!(foreign.code(), "InvalidParameter.NextToken", "a token belongs to its action");
}

#[tokio::test]
async fn filters_choose_by_tag_name_state_and_time() {
    let timed = Timed::start(|_| {}).await;
    let one = create(&timed.emulator, "vk-1", &[("Tag.1.Key", "node"), ("Tag.1.Value", "a")]).await;
    timed.pass(100);
    create(&timed.emulator, "vk-2", &[("Tag.1.Key", "node"), ("Tag.1.Value", "b")]).await;
    let list = async |parameters: &[(&str, &str)]| {
        let found = call(&timed.emulator, "DescribeContainerGroups", parameters).await.json();
        names(&found["ContainerGroups"]).join(" ")
    };
    assert_eq!(list(&[]).await, "vk-2 vk-1");
    assert_eq!(list(&[("Tag.1.Key", "node"), ("Tag.1.Value", "a")]).await, "vk-1");
    assert_eq!(list(&[("Tag.1.Key", "node")]).await, "vk-2 vk-1");
    assert_eq!(list(&[("ContainerGroupName", "vk-2")]).await, "vk-2");
    assert_eq!(list(&[("Status", "Running")]).await, "vk-1");
    let since = call(&timed.emulator, "DescribeContainerGroupStatus", &[("SinceSecond", "10")]).await.json();
    assert_eq!(since["Data"].as_array().unwrap().len(), 1);
    assert_eq!(since["Data"][0]["Name"], "vk-2");
    let events = call(&timed.emulator, "DescribeContainerGroupEvents", &[("SinceSecond", "10")]).await.json();
    assert_eq!(events["Data"].as_array().unwrap().len(), 1);
    let agent =
        call(&timed.emulator, "DescribeContainerGroupEvents", &[("EventSource", "EciService")]).await.json();
    assert_eq!(agent["Data"][0]["Events"].as_array().unwrap().len(), 1);
    assert!(timed.emulator.vanish(&one));
    assert_eq!(list(&[]).await, "vk-2");
}

#[tokio::test]
async fn lists_lag_behind_as_long_as_configured() {
    let timed = Timed::start(|options| options.settings.timing.lag = SignedDuration::from_secs(10)).await;
    let id = create(&timed.emulator, "vk-1", &[]).await;
    let listed =
        async || call(&timed.emulator, "DescribeContainerGroups", &[]).await.json()["TotalCount"].clone();
    assert_eq!(listed().await, 0);
    assert_eq!(timed.status(&id).await, "Scheduling", "by id it is there");
    timed.pass(10);
    assert_eq!(listed().await, 1);
    call(&timed.emulator, "DeleteContainerGroup", &[("ContainerGroupId", &id)]).await;
    timed.pass(2);
    assert_eq!(listed().await, 1, "a ghost");
    assert_eq!(timed.status(&id).await, "none", "by id it is gone");
    timed.pass(10);
    assert_eq!(listed().await, 0);
}

#[tokio::test]
async fn only_the_last_hundred_ended_groups_are_kept_for_longer_than_an_hour() {
    let timed = Timed::start(|_| {}).await;
    for number in 0..120 {
        create(
            &timed.emulator,
            &format!("vk-{number}"),
            &[("RestartPolicy", "Never"), ("Container.1.Command.1", "true")],
        )
        .await;
        timed.pass(1);
    }
    timed.pass(60);
    assert_eq!(timed.emulator.groups().len(), 120);
    timed.pass(3700);
    let left = timed.emulator.groups();
    assert_eq!(left.len(), 100);
    assert!(left.iter().all(|group| group.status == "Succeeded"));
    assert!(left.iter().all(|group| group.name != "vk-0"));
}

#[tokio::test]
async fn quota_stock_and_zones_refuse_a_create() {
    let emulator = simulated().await;
    let code = async |more: &[(&str, &str)]| {
        call(&emulator, "CreateContainerGroup", &group("vk-1", more)).await.code()
    };
    emulator.change_settings(|settings| settings.max_cpu = 3.0);
    create(&emulator, "vk-1", &[]).await;
    assert_eq!(code(&[]).await, "QuotaExceeded");
    let usage = call(&emulator, "ListUsage", &[]).await.json();
    assert_eq!(
        (usage["Attributes"]["UsedCpu"].as_f64(), usage["Attributes"]["MaxCpu"].as_f64()),
        (Some(2.0), Some(3.0))
    );
    emulator.change_settings(|settings| {
        settings.max_cpu = 100.0;
        settings.sold_out.insert("vsw-a".to_owned());
    });
    assert_eq!(code(&[]).await, "OperationDenied.NoStock");
    let id = create(&emulator, "vk-2", &[("VSwitchId", "vsw-a,vsw-b")]).await;
    assert_eq!(describe(&emulator, &id).await["VSwitchId"], "vsw-b");
    emulator.change_settings(|settings| {
        settings.sold_out = ["vsw-b/2-4Gi".to_owned()].into();
    });
    let id =
        create(&emulator, "vk-3", &[("VSwitchId", "vsw-b"), ("InstanceType", "2-4Gi,ecs.c6.xlarge")]).await;
    assert_eq!(describe(&emulator, &id).await["InstanceType"], "ecs.c6.xlarge");
    emulator.change_settings(|settings| {
        settings.closed_zones.insert("cn-hangzhou-a".to_owned());
    });
    assert_eq!(code(&[]).await, "Zone.NotOnSale");
    emulator.change_settings(|settings| {
        settings.closed_zones.clear();
        settings.sold_out.insert("2-4".to_owned());
        settings.stock_check = StockCheck::AtSchedule;
    });
    let id = create(&emulator, "vk-4", &[]).await;
    let failed = until(&emulator, &id, |group| group["Status"] == "ScheduleFailed").await;
    assert_eq!(failed["Events"][1]["Reason"], "NoStock");
    emulator.set_overdrawn(true);
    assert_eq!(code(&[]).await, "Account.Arrearage");
}

#[tokio::test]
async fn a_dry_run_checks_everything_and_creates_nothing() {
    let emulator = simulated().await;
    let dry = call(&emulator, "CreateContainerGroup", &group("vk-1", &[("DryRun", "true")])).await;
    assert_eq!(dry.code(), "DryRunOperation");
    emulator.change_settings(|settings| {
        settings.sold_out.insert("vsw-a".to_owned());
    });
    let dry = call(&emulator, "CreateContainerGroup", &group("vk-1", &[("DryRun", "true")])).await;
    assert_eq!(dry.code(), "OperationDenied.NoStock");
    assert!(emulator.groups().is_empty());
}

#[tokio::test]
async fn a_spot_group_can_be_reclaimed() {
    let emulator = simulated().await;
    let id = create(&emulator, "vk-1", &[("SpotStrategy", "SpotAsPriceGo")]).await;
    until(&emulator, &id, |group| group["Status"] == "Running").await;
    assert!(emulator.reclaim(&id));
    let group = describe(&emulator, &id).await;
    assert_eq!(group["Status"], "Expired");
    assert_eq!(group["Containers"][0]["CurrentState"]["Signal"], 9);
    assert!(group["Events"].as_array().unwrap().iter().any(|event| event["Reason"] == "SpotToBeReleased"));
}

#[tokio::test]
async fn an_update_replaces_what_is_given_and_only_while_the_group_lives() {
    let emulator = simulated().await;
    let id = create(&emulator, "vk-1", &[("Container.1.Cpu", "1"), ("Container.1.Memory", "2")]).await;
    until(&emulator, &id, |group| group["Status"] == "Running").await;
    let change = [
        ("ContainerGroupId", id.as_str()),
        ("UpdateType", "IncrementalUpdate"),
        ("Container.1.Name", "main"),
        ("Container.1.Image", "busybox:2"),
        ("Container.1.Cpu", "2"),
    ];
    let answer = call(&emulator, "UpdateContainerGroup", &change).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let again = call(&emulator, "UpdateContainerGroup", &change).await;
    assert_eq!(again.code(), "IncorrectStatus", "it is Updating");
    let group = until(&emulator, &id, |group| group["Status"] == "Running").await;
    assert_eq!(group["Containers"][0]["Image"], "busybox:2");
    assert_eq!(group["Containers"][0]["Memory"], 2.0);
    assert_eq!(group["Cpu"], 2.0);
    assert_eq!(group["Containers"][0]["RestartCount"], 1);
    call(&emulator, "RestartContainerGroup", &[("ContainerGroupId", &id)]).await;
    until(&emulator, &id, |group| {
        group["Containers"][0]["RestartCount"] == 2 && group["Status"] == "Running"
    })
    .await;
    let other = [
        ("ContainerGroupId", id.as_str()),
        ("UpdateType", "IncrementalUpdate"),
        ("Container.1.Name", "other"),
    ];
    assert_eq!(call(&emulator, "UpdateContainerGroup", &other).await.code(), "InvalidParameter.Name");
}

#[tokio::test]
async fn logs_have_all_options() {
    let timed = Timed::start(|_| {}).await;
    let script = "echo one; sleep 10; echo two; sleep 10; echo three; sleep 1000";
    let id = create(
        &timed.emulator,
        "vk-1",
        &[
            ("Container.1.Command.1", "sh"),
            ("Container.1.Command.2", "-c"),
            ("Container.1.Command.3", script),
        ],
    )
    .await;
    timed.pass(26);
    let log = async |more: &[(&str, &str)]| {
        let mut all = vec![("ContainerGroupId", id.as_str()), ("ContainerName", "main")];
        all.extend(more);
        let answer = call(&timed.emulator, "DescribeContainerLog", &all).await;
        answer.json()["Content"].as_str().map_or_else(|| answer.code(), str::to_owned)
    };
    assert_eq!(log(&[]).await, "one\ntwo\nthree\n");
    assert_eq!(log(&[("Tail", "1")]).await, "three\n");
    assert_eq!(log(&[("SinceSeconds", "12")]).await, "two\nthree\n");
    assert_eq!(log(&[("LimitBytes", "5")]).await, "one\nt");
    let stamped = log(&[("Timestamps", "true"), ("Tail", "1")]).await;
    let (time, text) = stamped.split_once(' ').unwrap();
    assert_eq!(text, "three\n");
    assert_eq!(log(&[("StartTime", time)]).await, "three\n");
    assert_eq!(log(&[("Tail", "2001")]).await, "InvalidParameter.Tail");
    assert_eq!(log(&[("LastTime", "true")]).await, "InvalidParameter.LastTime");
    let missing =
        call(&timed.emulator, "DescribeContainerLog", &[("ContainerGroupId", &id), ("ContainerName", "x")])
            .await;
    assert_eq!(missing.code(), "ContainerName.NotFound");
}

#[tokio::test]
async fn a_missing_image_is_waited_for() {
    let emulator = simulated().await;
    let id = create(&emulator, "vk-1", &[("Container.1.Image", "no-such-image:1")]).await;
    let waiting =
        until(&emulator, &id, |group| group["Containers"][0]["CurrentState"]["Reason"] == "ImagePullBackOff")
            .await;
    assert_eq!(waiting["Status"], "Pending");
    assert!(
        waiting["Events"]
            .as_array()
            .unwrap()
            .iter()
            .any(|event| event["Type"] == "Warning" && event["Reason"] == "Failed")
    );
}

#[tokio::test]
async fn a_deadline_ends_a_group() {
    let timed = Timed::start(|_| {}).await;
    let id = create(&timed.emulator, "vk-1", &[("ActiveDeadlineSeconds", "60")]).await;
    timed.pass(30);
    assert_eq!(timed.status(&id).await, "Running");
    timed.pass(40);
    assert_eq!(timed.status(&id).await, "Failed");
}
