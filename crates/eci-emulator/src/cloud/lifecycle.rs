//! From the create to the running group.

use jiff::SignedDuration;
use serde_json::Value;

use super::{
    Cloud, Container, ContainerState, Due, Group, GroupStatus, Outcome, Size, StockCheck, catalog::grid,
};
use crate::error::{ApiError, Result};

/// Where a group could run.
struct Place {
    v_switch: String,
    zone: String,
    size: Size,
    instance_type: Option<String>,
}

// === impl Cloud ===

impl Cloud {
    /// Creates a group. Its request is checked already, as far as it can be checked alone.
    pub(crate) fn create(&mut self, request: &Value) -> Result<String> {
        let place = self.place(request)?;
        if self.used_cpu() + place.size.cpu > self.settings.max_cpu {
            let message = format!(
                "Living ECI quota exceeded: {} of {} vCPUs are in use, {} more are requested.",
                self.used_cpu(),
                self.settings.max_cpu,
                place.size.cpu
            );
            return Err(ApiError::new(403, "QuotaExceeded", message));
        }
        if request["DryRun"] == true {
            let message = "Request validation has been passed with DryRun flag set.";
            return Err(ApiError::new(400, "DryRunOperation", message));
        }
        self.sequence += 1;
        let number = self.sequence;
        let id = self.new_id("eci-");
        let uuid = self.new_uuid();
        let containers = |name: &str, is_init| {
            let list = request[name].as_array().into_iter().flatten();
            list.map(move |spec| Container::new(spec, is_init)).collect::<Vec<_>>()
        };
        let tags = request["Tag"].as_array().into_iter().flatten().map(|tag| {
            let text = |name: &str| tag[name].as_str().unwrap_or_default().to_owned();
            (text("Key"), text("Value"))
        });
        let mut group = Group {
            id: id.clone(),
            uuid,
            status: GroupStatus::Scheduling,
            before: GroupStatus::Scheduling,
            created: self.now,
            changed: self.now,
            ended: None,
            billed_to: None,
            started: None,
            is_gone: false,
            listed_from: self.now + self.settings.timing.lag,
            v_switch: place.v_switch,
            zone: place.zone,
            size: place.size,
            instance_type: place.instance_type,
            ip: None,
            ipv6: None,
            internet_ip: None,
            tags: tags.collect(),
            events: Vec::new(),
            containers: [containers("InitContainer", true), containers("Container", false)].concat(),
            spec: request.clone(),
        };
        group.push_event(self.now, "EciCreated", "Eci create successfully.");
        self.ids.insert(id.clone(), number);
        self.groups.insert(number, group);
        self.after(self.settings.timing.scheduling, Due::Schedule(number));
        Ok(id)
    }

    fn new_uuid(&mut self) -> String {
        let mut part = |digits: usize| -> String {
            let digit = |value| char::from_digit(u32::try_from(value).unwrap_or(0), 16);
            (0..digits).filter_map(|_| digit(self.random(16))).collect()
        };
        format!("{}-{}-{}-{}-{}", part(8), part(4), part(4), part(4), part(12))
    }

    /// The first place with stock, in the order of the request.
    fn place(&mut self, request: &Value) -> Result<Place> {
        let switches: Vec<String> = match request["VSwitchId"].as_str() {
            Some(list) => list.split(',').map(|name| name.trim().to_owned()).collect(),
            None => self.settings.v_switches.keys().take(1).cloned().collect(),
        };
        let mut places = Vec::new();
        for v_switch in switches {
            let zone = self.settings.v_switches.get(&v_switch).ok_or_else(|| {
                let message = format!("The specified vSwitch {v_switch} does not exist.");
                ApiError::new(404, "InvalidVSwitchId.NotFound", message)
            })?;
            if request["ZoneId"].as_str().is_some_and(|wanted| wanted != zone) {
                let message = format!("The vSwitch {v_switch} is not in the specified zone.");
                return Err(ApiError::new(400, "OperationDenied.VswZoneMisMatch", message));
            }
            for (size, instance_type) in sizes(request)? {
                places.push(Place { v_switch: v_switch.clone(), zone: zone.clone(), size, instance_type });
            }
        }
        if request["ScheduleStrategy"] == "VSwitchRandom" && !places.is_empty() {
            let first = usize::try_from(self.random(places.len() as u64)).unwrap_or(0);
            places.rotate_left(first);
        }
        if places.iter().all(|place| self.settings.closed_zones.contains(&place.zone)) {
            let message = "The resource in the specified zone is no longer available for sale.";
            return Err(ApiError::new(403, "Zone.NotOnSale", message));
        }
        let stocked = places.iter().position(|place| self.has_stock(place));
        match (stocked, self.settings.stock_check) {
            (Some(index), _) => Ok(places.swap_remove(index)),
            (None, StockCheck::AtSchedule) if request["DryRun"] != true => Ok(places.swap_remove(0)),
            (None, _) => Err(ApiError::new(
                403,
                "OperationDenied.NoStock",
                "Create ECI failed because the specified instance is out of stock.",
            )),
        }
    }

    fn has_stock(&self, place: &Place) -> bool {
        let sold_out = &self.settings.sold_out;
        let size = place.instance_type.clone().unwrap_or_else(|| place.size.name());
        !self.settings.closed_zones.contains(&place.zone)
            && [&place.v_switch, &place.zone, &size, &place.size.name()]
                .iter()
                .all(|name| !sold_out.contains(name.as_str()))
            && !sold_out.contains(&format!("{}/{size}", place.v_switch))
    }

    fn set_status(&mut self, number: u64, status: GroupStatus) {
        let now = self.now;
        if let Some(group) = self.groups.get_mut(&number) {
            group.status = status;
            group.changed = now;
            if status.is_ended() {
                group.ended = Some(now);
                group.billed_to.get_or_insert(now);
            }
        }
    }

    pub(super) fn schedule(&mut self, number: u64) {
        let Some(group) = self.groups.get(&number).filter(|group| group.status == GroupStatus::Scheduling)
        else {
            return;
        };
        let place = Place {
            v_switch: group.v_switch.clone(),
            zone: group.zone.clone(),
            size: group.size,
            instance_type: group.instance_type.clone(),
        };
        if !self.has_stock(&place) {
            self.event(
                number,
                "NoStock",
                "Create ECI failed because the specified instance is out of stock.",
            );
            if let Some(group) = self.groups.get_mut(&number) {
                // A group that never ran is not billed.
                group.billed_to = Some(group.created);
            }
            self.set_status(number, GroupStatus::ScheduleFailed);
            return;
        }
        let (high, low) = (number / 250 % 250, number % 250 + 2);
        if let Some(group) = self.groups.get_mut(&number) {
            let with_ipv6 = group.spec["Ipv6AddressCount"].as_i64().is_some_and(|count| count > 0);
            group.ip = Some(format!("192.168.{high}.{low}"));
            group.ipv6 = with_ipv6.then(|| format!("2408:4002::{high:x}:{low:x}"));
            let has_eip = group.spec["AutoCreateEip"] == true || group.spec["EipInstanceId"].is_string();
            group.internet_ip = has_eip.then(|| format!("47.96.{high}.{low}"));
            group.started = Some(self.now);
        }
        self.set_status(number, GroupStatus::Pending);
        self.event(number, "Scheduled", "Successfully assigned the container group to a node.");
        if let Some(seconds) = self.groups[&number].spec["ActiveDeadlineSeconds"].as_i64() {
            self.after(SignedDuration::from_secs(seconds), Due::Deadline(number));
        }
        let images = self.images(number);
        for image in images {
            self.event(number, "Pulling", &format!("Pulling image \"{image}\""));
        }
        self.after(self.settings.timing.pulling, Due::Pull(number));
    }

    fn images(&self, number: u64) -> Vec<String> {
        let containers = self.groups.get(&number).map_or(&[][..], |group| &group.containers);
        let images = containers.iter().filter_map(|container| container.spec["Image"].as_str());
        images.map(str::to_owned).collect()
    }

    pub(super) fn pull(&mut self, number: u64) {
        if self.groups.get(&number).is_none_or(|group| group.status != GroupStatus::Pending) {
            return;
        }
        let mut missing = Vec::new();
        for image in self.images(number) {
            if self.settings.missing_images.iter().any(|part| image.contains(part)) {
                let error = format!("Failed to pull image \"{image}\": not found");
                self.event(number, "Failed", &error);
                missing.push(image);
            } else {
                self.event(number, "Pulled", &format!("Successfully pulled image \"{image}\""));
            }
        }
        if missing.is_empty() {
            self.start_next(number);
            return;
        }
        let now = self.now;
        if let Some(group) = self.groups.get_mut(&number) {
            group.changed = now;
            for container in &mut group.containers {
                let image = container.spec["Image"].as_str().unwrap_or_default();
                if missing.iter().any(|other| other == image) {
                    let message = format!("Back-off pulling image \"{image}\"");
                    container.state = ContainerState::Waiting { reason: "ImagePullBackOff".into(), message };
                }
            }
        }
        // It is tried again, as long as the group exists.
        self.after(SignedDuration::from_secs(20).max(self.settings.timing.pulling), Due::Pull(number));
    }

    /// Starts the next init container, or all containers.
    pub(super) fn start_next(&mut self, number: u64) {
        let Some(group) = self.groups.get(&number) else { return };
        if group.status.is_ended() || group.status == GroupStatus::Terminating {
            return;
        }
        let init = group.containers.iter().position(|each| each.is_init && each.exit_code() != Some(0));
        if let Some(index) = init {
            self.start(number, index);
            return;
        }
        let count = group.containers.len();
        let first = group.containers.iter().take_while(|each| each.is_init).count();
        self.set_status(number, GroupStatus::Running);
        for index in first..count {
            self.start(number, index);
        }
    }

    pub(super) fn event(&mut self, number: u64, reason: &str, message: &str) {
        let now = self.now;
        if let Some(group) = self.groups.get_mut(&number) {
            group.push_event(now, reason, message);
        }
    }

    /// Ends a group: every container that runs is killed.
    pub(crate) fn end(&mut self, number: u64, status: GroupStatus) {
        self.kill_containers(number, &Outcome::signal(9));
        self.set_status(number, status);
    }

    pub(super) fn set_group_status(&mut self, number: u64, status: GroupStatus) {
        self.set_status(number, status);
    }

    pub(super) fn exceed_deadline(&mut self, number: u64) {
        let is_living = self
            .groups
            .get(&number)
            .is_some_and(|group| !group.status.is_ended() && group.status != GroupStatus::Terminating);
        if is_living {
            self.event(
                number,
                "DeadlineExceeded",
                "The container group was active longer than its deadline.",
            );
            self.end(number, GroupStatus::Failed);
        }
    }

    /// The vendor takes a spot group back.
    pub(crate) fn reclaim(&mut self, number: u64) {
        self.event(number, "SpotToBeReleased", "The preemptible instance is released by the system.");
        self.end(number, GroupStatus::Expired);
    }
}

/// The sizes that the request accepts, in order.
fn sizes(request: &Value) -> Result<Vec<(Size, Option<String>)>> {
    if let Some(types) = request["InstanceType"].as_str() {
        return types
            .split(',')
            .map(|name| Ok((Size::of_type(name.trim())?, Some(name.trim().to_owned()))))
            .collect();
    }
    let number = |value: &Value| value.as_f64().unwrap_or(0.0);
    let all = |list: &str, name: &str| -> Vec<f64> {
        request[list].as_array().into_iter().flatten().map(|each| number(&each[name])).collect()
    };
    let need = |name: &str| {
        let sum: f64 = all("Container", name).iter().sum();
        let init = all("InitContainer", name).into_iter().fold(0.0, f64::max);
        number(&request[name]).max(sum.max(init))
    };
    Ok(vec![(grid(need("Cpu"), need("Memory"))?, None)])
}
