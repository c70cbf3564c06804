//! How the cloud behaves.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use jiff::SignedDuration;
use serde_json::Value;

use super::Script;

/// How long things take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Until a place for a group is found.
    pub scheduling: SignedDuration,
    /// Until the images are there.
    pub pulling: SignedDuration,
    /// Between the end of a simulated group's delete and its absence.
    pub stopping: SignedDuration,
    /// After a container's exit, until it is started again; doubled each time, up to thirty times as much.
    pub restart: SignedDuration,
    /// How long lists do not show a new group, and still show one that is gone.
    pub lag: SignedDuration,
    /// How long all ended groups are kept.
    pub retention: SignedDuration,
}

/// When a lack of stock is noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StockCheck {
    /// By the create, which fails.
    AtCreate,
    /// Later, by an event; the group ends as `ScheduleFailed`.
    AtSchedule,
}

/// How the cloud behaves. Can be changed while it runs.
#[derive(Clone)]
pub struct Settings {
    /// The region, `cn-hangzhou`.
    pub region: String,
    /// The zone of each vSwitch.
    pub v_switches: BTreeMap<String, String>,
    /// Security groups that exist.
    pub security_groups: BTreeSet<String>,
    /// How long things take.
    pub timing: Timing,
    /// The quota of CPUs of the account.
    pub max_cpu: f64,
    /// What has no stock: vSwitches, zones, sizes (`2-4`), types, or both (`vsw-a/2-4`).
    pub sold_out: BTreeSet<String>,
    /// When that is noticed.
    pub stock_check: StockCheck,
    /// Zones that are not sold to this account.
    pub closed_zones: BTreeSet<String>,
    /// Parts of names of images that cannot be pulled.
    pub missing_images: BTreeSet<String>,
    /// Price of a CPU and an hour.
    pub cpu_hour: f64,
    /// Price of a GiB of memory and an hour.
    pub memory_hour: f64,
    /// Currency of prices.
    pub currency: String,
    /// What a simulated container does: its specification as the request has it.
    pub script: Arc<dyn Fn(&Value) -> Script + Send + Sync>,
}

// === impl Timing ===

impl Timing {
    /// All at once, for tests in real time.
    pub fn instant() -> Self {
        let brief = SignedDuration::from_millis(20);
        Self {
            scheduling: brief,
            pulling: brief,
            stopping: brief,
            restart: SignedDuration::from_millis(200),
            lag: SignedDuration::ZERO,
            retention: SignedDuration::from_hours(1),
        }
    }
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            scheduling: SignedDuration::from_secs(2),
            pulling: SignedDuration::from_secs(3),
            stopping: SignedDuration::from_secs(2),
            restart: SignedDuration::from_secs(10),
            lag: SignedDuration::ZERO,
            retention: SignedDuration::from_hours(1),
        }
    }
}

// === impl Settings ===

impl Default for Settings {
    fn default() -> Self {
        let region = "cn-hangzhou".to_owned();
        let zone = |letter| format!("{region}-{letter}");
        Self {
            v_switches: ["a", "b", "c"].map(|letter| (format!("vsw-{letter}"), zone(letter))).into(),
            security_groups: ["sg-1", "sg-2"].map(str::to_owned).into(),
            timing: Timing::default(),
            max_cpu: 10_000.0,
            sold_out: BTreeSet::new(),
            stock_check: StockCheck::AtCreate,
            closed_zones: BTreeSet::new(),
            missing_images: ["no-such-image", "does-not-exist"].map(str::to_owned).into(),
            cpu_hour: 0.049,
            memory_hour: 0.0061,
            currency: "USD".to_owned(),
            script: Arc::new(Script::of_command),
            region,
        }
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings").field("region", &self.region).finish_non_exhaustive()
    }
}
