//! Which calls the policy of the user or role allows. Nothing is changed: calls that change something name a group that does not exist, and
//! the service refuses those who lack the permission before it looks for the group.

use vk_container_group::{
    backend::Size,
    cloud::{Class, Error, Result},
};
use vk_provider::{Finding, Quantity, finding::FindingLevel};

use crate::{
    api::{EciApi, GroupQuery, LogQuery, Parameters},
    backend::price,
    config::{Prices, Settings},
};

/// No group has this id.
const NO_GROUP: &str = "eci-0000000000000000000";
/// The lists that are empty for those who may not see groups.
const LISTS: &str =
    "eci:DescribeContainerGroups, eci:DescribeContainerGroupStatus and eci:DescribeContainerGroupEvents";

/// Checks all permissions but the one to create, which the dry runs show.
pub(super) async fn examine(api: &EciApi, settings: &Settings) -> Vec<Finding> {
    let mut findings = lists(api).await;
    let nothing = Parameters::default();
    let delete = api.delete(NO_GROUP).await;
    findings.push(granted("delete", "DeleteContainerGroup", FindingLevel::Error, delete));
    let update = api.update(NO_GROUP, &nothing).await;
    findings.push(granted("update", "UpdateContainerGroup", FindingLevel::Warning, update));
    let log = LogQuery { group: NO_GROUP, container: "doctor", ..LogQuery::default() };
    let log = api.log(&log).await.map(drop);
    findings.push(granted("read logs", "DescribeContainerLog", FindingLevel::Warning, log));
    let exec = api.exec(NO_GROUP, "doctor", &["true".to_owned()], false, false).await.map(drop);
    findings.push(granted("exec", "ExecContainerCommand", FindingLevel::Warning, exec));
    let metrics = api.metrics(&[NO_GROUP]).await.map(drop);
    findings.push(granted("read usage", "DescribeMultiContainerGroupMetric", FindingLevel::Warning, metrics));
    if settings.prices == Prices::Cloud {
        let price = api.price(&price::question(&smallest())).await.map(drop);
        findings.push(granted("ask for prices", "DescribeContainerGroupPrice", FindingLevel::Warning, price));
    }
    findings
}

/// Checks the lists of groups, of their statuses and of their events. Without the permission the service returns them empty, so only a
/// difference between them shows something.
async fn lists(api: &EciApi) -> Vec<Finding> {
    let groups = match api.groups(&GroupQuery::default()).await {
        Ok(groups) => groups,
        Err(error) => return vec![super::failure("permission to list", &error)],
    };
    let count = groups.container_groups.iter().count();
    let listed = if count > 0 {
        Finding::ok("permission to list", "granted")
    } else {
        Finding::warning(
            "permission to list",
            "the list of container groups is empty: there are none, or the permission is missing",
            format!("make sure that the policy allows {LISTS}"),
        )
    };
    let statuses = api.statuses(&[], None, None).await.map(|list| list.data.iter().count());
    let events = api.events(&[], None).await.map(|list| list.data.iter().count());
    let with_events =
        groups.container_groups.iter().filter(|group| group.events.iter().next().is_some()).count();
    let more = [
        part_of_list("read statuses", "DescribeContainerGroupStatus", FindingLevel::Error, statuses, count),
        part_of_list(
            "read events",
            "DescribeContainerGroupEvents",
            FindingLevel::Warning,
            events,
            with_events,
        ),
    ];
    std::iter::once(listed).chain(more.into_iter().flatten()).collect()
}

/// What a list about groups shows, of which the list of groups says that there are this many; nothing if neither has any.
fn part_of_list(
    what: &str,
    action: &str,
    level: FindingLevel,
    shown: Result<usize>,
    expected: usize,
) -> Option<Finding> {
    match shown {
        Ok(0) if expected > 0 => {
            let found = "the list is empty, although there are groups: the permission is missing".to_owned();
            Some(finding(level, what, found, action))
        }
        Ok(0) => None,
        shown => Some(granted(what, action, level, shown.map(drop))),
    }
}

/// A size whose price is asked for.
fn smallest() -> Size {
    Size { cpu: Quantity::units(1), memory: Quantity::bytes(2 << 30), instance_type: None }
}

/// What the outcome of a call shows about its permission: who lacks it is told so, whatever the call is about.
fn granted(what: &str, action: &str, level: FindingLevel, outcome: Result<()>) -> Finding {
    let error = match outcome {
        Ok(()) => return Finding::ok(format!("permission to {what}"), "granted"),
        Err(error) => error,
    };
    match error.class() {
        Class::NotFound | Class::Invalid { .. } | Class::Conflict => {
            Finding::ok(format!("permission to {what}"), "granted")
        }
        Class::Auth => finding(level, what, error.to_string(), action),
        _ => undecided(what, &error),
    }
}

fn finding(level: FindingLevel, what: &str, found: String, action: &str) -> Finding {
    let remedy = format!("allow eci:{action} in the RAM policy of this user or role: see docs/guide/eci.md");
    Finding { level, what: format!("permission to {what}"), found, remedy }
}

fn undecided(what: &str, error: &Error) -> Finding {
    let found = format!("cannot be checked: {error}");
    Finding::warning(format!("permission to {what}"), found, "try again later")
}
