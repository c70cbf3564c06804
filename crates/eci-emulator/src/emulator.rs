//! The emulator: what every call passes through.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Notify;
use vk_supervisor::Clock;

use crate::{
    account::{AccessKey, Account},
    calls::{self, Call},
    cloud::{BillingRecord, Cloud, Settings},
    error::{ApiError, Result},
    exec::Sessions,
    fault::{self, Fault, Faults, Rule},
    http::{Delivery, HttpRequest, HttpResponse},
    journal::Journal,
    process::Processes,
    rate::{Buckets, Limit},
    schema, signature,
};

pub(crate) const VERSION: &str = "2018-08-08";

/// What runs in containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Containers {
    /// A script tells what they do: [`Settings::script`].
    Simulated,
    /// Processes on this host, in their own root and namespaces. Needs root, a static busybox and util-linux.
    Processes,
}

/// How an emulator is started.
#[derive(Clone, Debug)]
pub struct Options {
    /// Access keys by id.
    pub keys: BTreeMap<String, AccessKey>,
    /// How the cloud behaves.
    pub settings: Settings,
    /// What runs in containers.
    pub containers: Containers,
    /// Whether calls are limited as the vendor limits them.
    pub limits_rates: bool,
    /// The time.
    pub clock: Clock,
    /// Of ids and random faults.
    pub seed: u64,
    /// Where requests and responses are written, without what may be secret.
    pub journal: Option<PathBuf>,
    /// Where the files of containers are; default the folder for temporary files.
    pub folder: Option<PathBuf>,
    /// The port on loopback. 0 is any.
    pub port: u16,
}

/// Calls of an action.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallCount {
    /// All that arrived.
    pub total: u64,
    /// Those that were refused, throttled ones included.
    pub refused: u64,
    /// Those that were throttled.
    pub throttled: u64,
}

/// A request as it arrived, decoded. It is kept in memory only, because nothing in it is masked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SentRequest {
    /// Parameters of the query and the form.
    pub parameters: BTreeMap<String, String>,
    /// Headers, names in lower case.
    pub headers: BTreeMap<String, String>,
}

/// What all connections have in common.
pub(crate) struct Emulator {
    pub(crate) clock: Clock,
    pub(crate) cloud: Mutex<Cloud>,
    pub(crate) account: Mutex<Account>,
    pub(crate) buckets: Mutex<Option<Buckets>>,
    pub(crate) faults: Mutex<Faults>,
    pub(crate) counts: Mutex<BTreeMap<String, CallCount>>,
    pub(crate) journal: Journal,
    /// The newest request of each action.
    pub(crate) newest: Mutex<BTreeMap<String, SentRequest>>,
    pub(crate) sessions: Sessions,
    pub(crate) processes: Option<Processes>,
    /// The state has changed.
    pub(crate) changed: Notify,
    /// `127.0.0.1:PORT`.
    pub(crate) authority: String,
}

// === impl Containers ===

impl Containers {
    /// Processes, if this host can have them: root, a busybox and util-linux.
    pub fn of_this_host() -> Self {
        let needed =
            ["/bin/busybox", "/usr/bin/nsenter", "/usr/bin/setpriv", "/usr/bin/setsid", "/usr/bin/unshare"];
        let is_root = rustix::process::geteuid().is_root();
        if is_root && needed.iter().all(|path| std::path::Path::new(path).exists()) {
            Self::Processes
        } else {
            Self::Simulated
        }
    }
}

// === impl Options ===

impl Options {
    /// An emulator with the access key `testid`, `testsecret`, whose containers are simulated.
    pub fn new() -> Self {
        Self::default()
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            keys: [("testid".to_owned(), AccessKey::new("testsecret"))].into(),
            settings: Settings::default(),
            containers: Containers::Simulated,
            limits_rates: true,
            clock: Clock::system(),
            seed: 1,
            journal: None,
            folder: None,
            port: 0,
        }
    }
}

impl std::fmt::Debug for AccessKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AccessKey").field("is_active", &self.is_active()).finish_non_exhaustive()
    }
}

// === impl Emulator ===

impl Emulator {
    pub(crate) fn new(options: &Options, authority: String) -> std::io::Result<Arc<Self>> {
        let processes = match options.containers {
            Containers::Simulated => None,
            Containers::Processes => Some(Processes::new(options.folder.as_deref())?),
        };
        let now = options.clock.now();
        Ok(Arc::new(Self {
            cloud: Mutex::new(Cloud::new(options.settings.clone(), processes.is_some(), options.seed, now)),
            clock: options.clock.clone(),
            account: Mutex::new(Account { keys: options.keys.clone(), ..Account::default() }),
            buckets: Mutex::new(options.limits_rates.then(Buckets::of_vendor)),
            faults: Mutex::new(Faults::new(options.seed)),
            counts: Mutex::default(),
            journal: Journal::new(options.journal.as_deref())?,
            newest: Mutex::default(),
            sessions: Sessions::default(),
            processes,
            changed: Notify::new(),
            authority,
        }))
    }

    /// The state of the cloud now.
    pub(crate) fn with_cloud<T>(self: &Arc<Self>, act: impl FnOnce(&mut Cloud) -> T) -> T {
        let result = self.advance(act);
        self.changed.notify_one();
        result
    }

    fn advance<T>(self: &Arc<Self>, act: impl FnOnce(&mut Cloud) -> T) -> T {
        let mut cloud = self.cloud.lock();
        cloud.advance(self.clock.now());
        let result = act(&mut cloud);
        // What is due at once happens before the next call.
        cloud.advance(self.clock.now());
        let effects = cloud.take_effects();
        if let Some(processes) = &self.processes {
            for effect in effects {
                processes.apply(self, &cloud, &effect);
            }
        }
        result
    }

    /// Answers a call.
    pub(crate) async fn answer(self: &Arc<Self>, request: &HttpRequest) -> (HttpResponse, Delivery) {
        let action = request.header("x-acs-action").or_else(|| request.parameter("Action"));
        let action = action.unwrap_or_default().to_owned();
        let parameters: Vec<_> = request.parameters().cloned().collect();
        let sent = SentRequest {
            parameters: parameters.iter().cloned().collect(),
            headers: request.headers.iter().cloned().collect(),
        };
        self.newest.lock().insert(action.clone(), sent);
        let mut fault = None;
        let outcome = self.call(request, &action, &mut fault).await;
        let throttled = matches!(&outcome, Err((error, _)) if error.code.starts_with("Throttling"));
        {
            let mut counts = self.counts.lock();
            let count = counts.entry(action.clone()).or_default();
            count.total += 1;
            count.refused += u64::from(outcome.is_err());
            count.throttled += u64::from(throttled);
        }
        let request_id = self.request_id();
        let (status, body, retry_after) = match outcome {
            Ok(mut body) => {
                body["RequestId"] = request_id.into();
                (200, body, None)
            }
            Err((error, retry_after)) => {
                (error.status, error.body(&request_id, &self.authority), retry_after)
            }
        };
        self.journal.record(&action, &parameters, status, &body, fault.is_some());
        let mut response = HttpResponse::json(status, &body);
        response.headers.push(("Date", http_date(self.clock.now())));
        if let Some(retry_after) = retry_after {
            response.headers.push(("x-acs-retry-after", retry_after.to_string()));
        }
        let delivery = fault.map_or(Delivery::Whole, |fault| deliver(&fault, &mut response));
        (response, delivery)
    }

    fn request_id(&self) -> String {
        let mut cloud = self.cloud.lock();
        let id = cloud.new_id("").to_ascii_uppercase();
        format!("{}-{}", &id[..8], &id[8..])
    }

    /// The body of an answer, or an error and after how many milliseconds to try again.
    async fn call(
        self: &Arc<Self>,
        request: &HttpRequest,
        action: &str,
        fault: &mut Option<Fault>,
    ) -> std::result::Result<Value, (ApiError, Option<u64>)> {
        let refuse = |error| (error, None);
        check_protocol(request, action).map_err(refuse)?;
        let now = self.clock.now();
        signature::verify(request, &mut self.account.lock(), now).map_err(refuse)?;
        let raw: Value = request
            .parameters()
            .filter(|(name, _)| name == "NextToken")
            .map(|(name, value)| (name.clone(), Value::from(value.as_str())))
            .collect::<serde_json::Map<_, _>>()
            .into();
        *fault = self.faults.lock().take(action, &raw);
        if let Some(fault) = fault.as_ref() {
            refused_by(fault)?;
        }
        if let Some(buckets) = &mut *self.buckets.lock() {
            buckets.take(action, now).map_err(|delay| {
                let error =
                    ApiError::new(400, "Throttling.User", "Request was denied due to user flow control.");
                (error, Some(delay))
            })?;
        }
        let tree = schema::read(action, request.parameters()).map_err(refuse)?;
        let may_list = self.permit(action).map_err(refuse)?;
        let call = Call { action, request: &tree, may_list };
        let outcome = match action {
            "ExecContainerCommand" => self.exec(&tree).await,
            "DescribeContainerGroupMetric" | "DescribeMultiContainerGroupMetric" => {
                self.measure();
                self.with_cloud(|cloud| calls::metrics(cloud, &call))
            }
            _ => self.with_cloud(|cloud| calls::carry_out(cloud, &call)),
        };
        if let Some(fault) = fault.as_ref().filter(|fault| fault.is_carried_out()) {
            if let Fault::ErrorAfter { status, code } = fault {
                let message = "The request processing has failed due to some unknown error.";
                return Err(refuse(ApiError::new(*status, code, message)));
            }
            let mut body = outcome.map_err(refuse)?;
            self.faults.lock().note_page(&tree, &body);
            fault.change(&mut body, &tree);
            return Ok(body);
        }
        let body = outcome.map_err(refuse)?;
        self.faults.lock().note_page(&tree, &body);
        Ok(body)
    }

    /// Whether the caller may do this. Lists are empty for those who may not see groups.
    fn permit(&self, action: &str) -> Result<bool> {
        let account = self.account.lock();
        if account.is_overdrawn && action == "CreateContainerGroup" {
            let message = "Your account does not have enough balance.";
            return Err(ApiError::new(403, "Account.Arrearage", message));
        }
        if !account.denied.contains(action) {
            return Ok(true);
        }
        let is_list = matches!(
            action,
            "DescribeContainerGroups" | "DescribeContainerGroupStatus" | "DescribeContainerGroupEvents"
        );
        if is_list {
            return Ok(false);
        }
        Err(ApiError::new(403, "Forbidden.RAM", "User not authorized to operate on the specified resource."))
    }

    /// Reads what processes use.
    fn measure(self: &Arc<Self>) {
        if let Some(processes) = &self.processes {
            processes.measure(self);
        }
    }

    pub(crate) fn bills(self: &Arc<Self>) -> Vec<BillingRecord> {
        self.with_cloud(|cloud| cloud.bills())
    }

    pub(crate) fn add_fault(&self, rule: Rule) {
        self.faults.lock().add(rule);
    }

    pub(crate) fn set_limit(&self, action: &'static str, limit: Limit) {
        self.buckets.lock().get_or_insert_default().set(action, limit);
    }

    /// Carries out what is due, for ever. Simulated containers need no such task, processes do.
    pub(crate) async fn drive(self: Arc<Self>) {
        loop {
            let next = self.advance(|cloud| cloud.next_due());
            let now = self.clock.now();
            let wait = next.map_or(Duration::from_hours(1), |next| {
                Duration::try_from(next.duration_since(now)).unwrap_or_default()
            });
            // A change of the state may bring something that is due earlier.
            let _ = tokio::time::timeout(wait, self.changed.notified()).await;
        }
    }
}

fn check_protocol(request: &HttpRequest, action: &str) -> Result<()> {
    if !["GET", "POST"].contains(&request.method.as_str()) || request.path != "/" {
        return Err(ApiError::new(404, "InvalidApi.NotFound", "Specified api is not found."));
    }
    let version = request.header("x-acs-version").or_else(|| request.parameter("Version"));
    if version != Some(VERSION) {
        return Err(ApiError::new(404, "InvalidVersion", "Specified parameter Version is not valid."));
    }
    if !schema::has_call(action) {
        let message = format!("Specified api {action} is not found, please check your url and method.");
        return Err(ApiError::new(404, "InvalidAction.NotFound", message));
    }
    Ok(())
}

fn refused_by(fault: &Fault) -> std::result::Result<(), (ApiError, Option<u64>)> {
    match fault {
        Fault::Error { status, code, retry_after } => {
            let message = format!("The request was refused by a fault: {code}.");
            Err((ApiError::new(*status, code, message), *retry_after))
        }
        Fault::ErrorInside200 { code } => {
            Err((ApiError::new(200, code, "The request has failed inside of a success."), None))
        }
        Fault::PageTokenRefused => {
            Err((ApiError::invalid("NextToken", "The specified NextToken is invalid or has expired."), None))
        }
        Fault::ResetBefore | Fault::HangBefore | Fault::Html { .. } | Fault::Redirect { .. } => {
            Err((ApiError::new(503, "ServiceUnavailable", "Never sent."), None))
        }
        _ => Ok(()),
    }
}

/// How the answer is sent.
fn deliver(fault: &Fault, response: &mut HttpResponse) -> Delivery {
    match fault {
        Fault::ResetBefore | Fault::ResetAfter => Delivery::Reset,
        Fault::HangBefore | Fault::HangAfter => Delivery::Hang,
        Fault::Truncated => Delivery::Truncated,
        Fault::Huge { bytes } => Delivery::Huge(*bytes),
        Fault::Html { status } => {
            response.status = *status;
            response.content_type = "text/html";
            response.body =
                b"<!DOCTYPE html><html><body><h1>Welcome to the proxy</h1></body></html>".to_vec();
            Delivery::Whole
        }
        Fault::Redirect { location } => {
            response.status = 302;
            response.headers.push(("Location", location.clone()));
            Delivery::Whole
        }
        other => fault::delay(other).map_or(Delivery::Whole, Delivery::Late),
    }
}

fn http_date(at: Timestamp) -> String {
    at.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string()
}

/// What the emulator knows about itself, for its control endpoint.
pub(crate) fn count_json(counts: &BTreeMap<String, CallCount>) -> Value {
    counts
        .iter()
        .map(|(action, count)| {
            let count = json!({"total": count.total, "refused": count.refused, "throttled": count.throttled});
            (action.clone(), count)
        })
        .collect::<serde_json::Map<_, _>>()
        .into()
}
