//! Typed calls of the ECI API, version 2018-08-08.
//!
//! Parameters are flattened as the vendor's SDKs do: `Container.1.EnvironmentVar.2.Key`. Of a response every field is optional, also those
//! that the vendor documents as mandatory.

mod parameters;
mod response;
mod tolerant;

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use jiff::Timestamp;
use vk_container_group::cloud::{
    Effect, Result,
    alibaba::{Api, Call},
};

pub(crate) use self::{
    parameters::{Parameters, flatten},
    response::{
        CommandStarted, ContainerGroup, ContainerState, CpuMetric, Created, EventList, GroupContainer,
        GroupEvent, GroupList, GroupPrice, LogContent, MemoryMetric, MetricList, MetricRecord, NetworkMetric,
        PodContainer, Regions, StatusEntry, StatusList, StatusState, StatusTermination, UsageList,
    },
    tolerant::List,
};

/// The version of the API.
pub(crate) const VERSION: &str = "2018-08-08";
/// The maximum number of groups on a page of `DescribeContainerGroups`, and of ids in a call.
pub(crate) const PAGE: usize = 20;
/// The maximum number of groups on a page of `DescribeContainerGroupStatus`.
pub(crate) const STATUS_PAGE: usize = 200;

/// The ECI API of one region.
#[derive(Clone, Debug)]
pub(crate) struct EciApi {
    api: Api,
    region: String,
    /// The number of groups on a page of a list.
    page: Arc<AtomicUsize>,
}

/// What `DescribeContainerGroups` returns.
#[derive(Clone, Debug, Default)]
pub(crate) struct GroupQuery<'a> {
    /// Only these groups.
    pub(crate) ids: Vec<&'a str>,
    /// Only groups of this name.
    pub(crate) name: Option<&'a str>,
    /// Only groups with these tags.
    pub(crate) tags: Vec<(&'a str, &'a str)>,
    /// Where the page begins.
    pub(crate) page: Option<&'a str>,
}

/// The part of a log that `DescribeContainerLog` returns.
#[derive(Clone, Debug, Default)]
pub(crate) struct LogQuery<'a> {
    /// The group.
    pub(crate) group: &'a str,
    /// The container.
    pub(crate) container: &'a str,
    /// The number of lines.
    pub(crate) tail: Option<u64>,
    /// From when on.
    pub(crate) start: Option<Timestamp>,
    /// The log of the previous instance.
    pub(crate) previous: bool,
}

// === impl EciApi ===

impl EciApi {
    pub(crate) fn new(api: Api, region: impl Into<String>) -> Self {
        Self { api, region: region.into(), page: Arc::new(AtomicUsize::new(PAGE)) }
    }

    /// Makes the pages of lists smaller.
    #[cfg(test)]
    pub(crate) fn set_page(&self, groups: usize) {
        self.page.store(groups.min(PAGE), Ordering::Relaxed);
    }

    /// A call of an action in this region.
    fn call(&self, action: &'static str, effect: Effect) -> Call {
        Call::new(action, effect).parameter("RegionId", &self.region)
    }

    fn read(&self, action: &'static str) -> Call {
        self.call(action, Effect::Repeatable)
    }

    /// Creates a group.
    pub(crate) async fn create(&self, parameters: &Parameters) -> Result<Created> {
        let call = self.call("CreateContainerGroup", Effect::Create);
        self.api.call(parameters.add_to(call)).await
    }

    /// Checks a create, also whether there is stock, and creates nothing. Returns why it would fail.
    pub(crate) async fn dry_run(&self, parameters: &Parameters) -> Result<()> {
        // Errors mean the same as those of a create.
        let call = self.call("CreateContainerGroup", Effect::Create).parameter("DryRun", "true");
        match self.api.call::<Created>(parameters.add_to(call)).await {
            // The answer to a request that would succeed.
            Err(error) if error.code().is_some_and(|code| code.starts_with("DryRunOperation")) => Ok(()),
            Err(error) => Err(error),
            Ok(_) => Ok(()),
        }
    }

    /// Deletes a group.
    pub(crate) async fn delete(&self, group: &str) -> Result<()> {
        let call = self.read("DeleteContainerGroup").parameter("ContainerGroupId", group);
        self.api.call::<serde::de::IgnoredAny>(call).await.map(drop)
    }

    /// Reads groups, with all that the service says about them.
    pub(crate) async fn groups(&self, query: &GroupQuery<'_>) -> Result<GroupList> {
        let mut call = self
            .read("DescribeContainerGroups")
            .parameter("WithEvent", "true")
            .parameter("Limit", self.page.load(Ordering::Relaxed).max(query.ids.len()).to_string());
        if !query.ids.is_empty() {
            call = call.parameter("ContainerGroupIds", id_list(&query.ids));
        }
        if let Some(name) = query.name {
            call = call.parameter("ContainerGroupName", name);
        }
        self.api.call(with_page(with_tags(call, &query.tags), query.page)).await
    }

    /// Reads the status of groups: those that have changed in the last `seconds`, or all.
    pub(crate) async fn statuses(
        &self,
        tags: &[(&str, &str)],
        seconds: Option<u64>,
        page: Option<&str>,
    ) -> Result<StatusList> {
        let call = self.read("DescribeContainerGroupStatus").parameter("Limit", STATUS_PAGE.to_string());
        self.api.call(with_page(with_tags(since(call, seconds), tags), page)).await
    }

    /// Reads the events of the last `seconds`, or all.
    pub(crate) async fn events(&self, tags: &[(&str, &str)], seconds: Option<u64>) -> Result<EventList> {
        self.api.call(with_tags(since(self.read("DescribeContainerGroupEvents"), seconds), tags)).await
    }

    /// Reads a log. Each line begins with its time.
    pub(crate) async fn log(&self, query: &LogQuery<'_>) -> Result<LogContent> {
        let mut call = self
            .read("DescribeContainerLog")
            .parameter("ContainerGroupId", query.group)
            .parameter("ContainerName", query.container)
            .parameter("Timestamps", "true");
        if let Some(tail) = query.tail {
            call = call.parameter("Tail", tail.to_string());
        }
        if let Some(start) = query.start {
            call = call.parameter("StartTime", start.to_string());
        }
        if query.previous {
            call = call.parameter("LastTime", "true");
        }
        self.api.call(call).await
    }

    /// Starts a command, to be continued at the URL in the answer.
    pub(crate) async fn exec(
        &self,
        group: &str,
        container: &str,
        command: &[String],
        stdin: bool,
        tty: bool,
    ) -> Result<CommandStarted> {
        // Serializing strings cannot fail.
        let command = serde_json::to_string(command).unwrap_or_default();
        let call = self
            .call("ExecContainerCommand", Effect::Repeatable)
            .parameter("ContainerGroupId", group)
            .parameter("ContainerName", container)
            // Users write passwords into commands.
            .secret_parameter("Command", command)
            .parameter("Stdin", stdin.to_string())
            .parameter("TTY", tty.to_string());
        self.api.call(call).await
    }

    /// Reads the resource usage of at most [`PAGE`] groups.
    pub(crate) async fn metrics(&self, groups: &[&str]) -> Result<MetricList> {
        let call = self
            .read("DescribeMultiContainerGroupMetric")
            .parameter("ContainerGroupIds", id_list(groups))
            .parameter("MetricType", "summary");
        self.api.call(call).await
    }

    /// Changes a group in place.
    pub(crate) async fn update(&self, group: &str, parameters: &Parameters) -> Result<()> {
        let call = self
            .read("UpdateContainerGroup")
            .parameter("ContainerGroupId", group)
            .parameter("UpdateType", "IncrementalUpdate");
        self.api.call::<serde::de::IgnoredAny>(parameters.add_to(call)).await.map(drop)
    }

    /// Asks for a price.
    pub(crate) async fn price(&self, parameters: &Parameters) -> Result<GroupPrice> {
        self.api.call(parameters.add_to(self.read("DescribeContainerGroupPrice"))).await
    }

    /// Reads usage and limits of the account.
    pub(crate) async fn usage(&self) -> Result<UsageList> {
        self.api.call(self.read("ListUsage")).await
    }

    /// Reads the regions.
    pub(crate) async fn regions(&self) -> Result<Regions> {
        self.api.call(self.read("DescribeRegions")).await
    }
}

fn id_list(ids: &[&str]) -> String {
    // Serializing strings cannot fail.
    serde_json::to_string(ids).unwrap_or_default()
}

fn since(call: Call, seconds: Option<u64>) -> Call {
    match seconds {
        Some(seconds) => call.parameter("SinceSecond", seconds.to_string()),
        None => call,
    }
}

fn with_tags(call: Call, tags: &[(&str, &str)]) -> Call {
    tags.iter().enumerate().fold(call, |call, (at, (key, value))| {
        let number = at + 1;
        call.parameter(format!("Tag.{number}.Key"), *key).parameter(format!("Tag.{number}.Value"), *value)
    })
}

fn with_page(call: Call, page: Option<&str>) -> Call {
    match page {
        Some(page) => call.parameter("NextToken", page),
        None => call,
    }
}
