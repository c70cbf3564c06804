//! The conformance suite: checks a provider against the contract, without a control plane.
//!
//! ```
//! # use std::sync::Arc;
//! # use vk_provider::{Context, Provider, Result};
//! # async fn connect(_node: String) -> Result<Arc<dyn Provider>> {
//! #     Err(vk_provider::Error::unavailable("connect: there is no backend"))
//! # }
//! struct MyBackend;
//!
//! #[async_trait::async_trait]
//! impl vk_testing::conformance::Subject for MyBackend {
//!     async fn open(&self, context: Context) -> Result<Arc<dyn Provider>> {
//!         connect(context.node_name).await
//!     }
//! }
//!
//! vk_testing::conformance!(MyBackend);
//! ```
//!
//! The macro generates one test per case, so that `cargo test` names every rule and each can be run alone. The cases call the provider as the core
//! does: with their own pods, a resolver with fixed results, a time limit for each call, and the core's reaction to errors. [`Subject`] opens the
//! provider, declares what its backend cannot do, and configures pods to exit or to ignore SIGTERM.
//!
//! A case about a feature that the backend lacks prints that it does not apply. A failed case quotes the violated sentence of the contract, what was
//! observed, and what to do.

mod caller;
mod case;
mod context;
mod pod_builder;
mod pod_status;
mod resolver;
mod result;
mod subject;
mod table;

use std::{any::Any, fmt, io::Write as _, sync::Arc, time::Duration};

use futures::future::BoxFuture;

pub use self::{
    pod_builder::{LOGIN, PULL_SECRET, SETTINGS},
    resolver::bundle,
    result::{CaseResult, Violation},
    subject::{ContainerBehavior, Feature, PodBehavior, Subject},
};

use self::{context::CaseContext, result::Outcome};

/// Time limit of a case, as a multiple of the subject's limit: a case waits several times, and one that takes longer than this is blocked.
const LIMITS: u32 = 20;
/// Time limit for the remaining tasks of a case to end.
const SHUTDOWN: Duration = Duration::from_secs(2);

/// A rule of the contract and its check.
#[derive(Clone, Copy)]
pub struct Case {
    /// The area, such as `create`.
    pub area: &'static str,
    /// The name of the case and of its test.
    pub name: &'static str,
    /// The sentence of the contract.
    pub rule: &'static str,
    check: for<'a> fn(&'a CaseContext) -> BoxFuture<'a, Outcome>,
}

/// All cases, in a good order for implementing a provider.
pub fn cases() -> &'static [Case] {
    crate::__conformance_cases!(__conformance_table)
}

/// Generates one test per case of the suite, for the [`Subject`](crate::conformance::Subject) that the expression returns.
///
/// The expression is evaluated once per case, inside of a tokio runtime. A crate with several subjects uses one module for each. After
/// `ignored: "REASON",` the tests are ignored by default. After `paused:` the cases run on tokio's paused clock, for subjects that wait for
/// nothing outside of the runtime.
#[macro_export]
macro_rules! conformance {
    (paused: $subject:expr) => {
        $crate::__conformance_cases! { __conformance_tests check_paused [] $subject }
    };
    (ignored: $reason:literal, $subject:expr) => {
        $crate::__conformance_cases! { __conformance_tests check [#[ignore = $reason]] $subject }
    };
    ($subject:expr) => {
        $crate::__conformance_cases! { __conformance_tests check [] $subject }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_table {
    ([] $($area:ident :: $name:ident $rule:literal;)*) => {
        &[$(
            Case {
                area: stringify!($area),
                name: stringify!($name),
                rule: $rule,
                check: |context| Box::pin(case::$area::$name(context)),
            },
        )*]
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_tests {
    ([$check:ident $attributes:tt $subject:expr] $($area:ident :: $name:ident $rule:literal;)*) => {
        $(
            $crate::__conformance_test! { $check $attributes $name $subject }
        )*
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_test {
    ($check:ident [$(#[$attribute:meta])*] $name:ident $subject:expr) => {
        #[test]
        $(#[$attribute])*
        fn $name() {
            $crate::conformance::$check(stringify!($name), || $subject);
        }
    };
}

// === impl Case ===

impl Case {
    /// Finds a case by name.
    pub fn named(name: &str) -> Option<&'static Self> {
        cases().iter().find(|case| case.name == name)
    }

    /// Runs the case and removes its pods. Needs a tokio runtime with time.
    pub async fn run(&self, subject: Arc<dyn Subject>) -> CaseResult {
        let context = CaseContext::new(subject);
        let outcome = (self.check)(&context).await;
        context.clean_up().await;
        outcome.into()
    }

    /// The full report of a violation: the rule, what was observed, what to do.
    pub fn report(&self, violation: &Violation) -> String {
        let Self { area, name, rule, .. } = self;
        format!("the provider violates a rule of the contract: {name} ({area})\n  rule: {rule}\n{violation}")
    }
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Case").field("area", &self.area).field("name", &self.name).finish_non_exhaustive()
    }
}

/// Runs a case in its own runtime, as the tests of [`conformance!`](crate::conformance!) do.
///
/// # Panics
///
/// When the provider violates the rule.
#[track_caller]
pub fn check<S: Subject>(name: &str, subject: impl FnOnce() -> S) {
    run_in(tokio::runtime::Builder::new_multi_thread().worker_threads(2), name, subject);
}

/// As [`check`], on a paused clock.
///
/// # Panics
///
/// When the provider violates the rule.
#[track_caller]
pub fn check_paused<S: Subject>(name: &str, subject: impl FnOnce() -> S) {
    run_in(tokio::runtime::Builder::new_current_thread().start_paused(true), name, subject);
}

#[track_caller]
fn run_in<S: Subject>(runtime: &mut tokio::runtime::Builder, name: &str, subject: impl FnOnce() -> S) {
    let case = Case::named(name).unwrap_or_else(|| panic!("unknown case {name}"));
    let runtime =
        runtime.enable_all().build().unwrap_or_else(|error| panic!("start a tokio runtime: {error}"));
    let result = runtime.block_on(async {
        let subject: Arc<dyn Subject> = Arc::new(subject());
        let limit = subject.limit() * LIMITS;
        // In its own task, so that a provider that blocks its thread does not block the timer.
        let mut task = tokio::task::JoinSet::new();
        task.spawn(async move { case.run(subject).await });
        match tokio::time::timeout(limit, task.join_next()).await {
            Ok(Some(Ok(result))) => result,
            Ok(Some(Err(error))) => violated(panicked(error)),
            Ok(None) | Err(_) => {
                violated(format!("the case did not end within {limit:?}: a call blocks its thread"))
            }
        }
    });
    runtime.shutdown_timeout(SHUTDOWN);
    match result {
        CaseResult::Passed => {}
        // Directly to standard error: the test harness captures print macros of passing tests.
        CaseResult::DoesNotApply(why) => {
            let _ = writeln!(std::io::stderr(), "{name} does not apply: {why}");
        }
        CaseResult::Violated(violation) => panic!("{}", case.report(&violation)),
    }
}

fn violated(seen: String) -> CaseResult {
    CaseResult::Violated(Violation {
        seen,
        advice: "return an error from the call, and await instead of blocking",
    })
}

fn panicked(error: tokio::task::JoinError) -> String {
    let Ok(panic) = error.try_into_panic() else { return "the case was cancelled".to_owned() };
    let text: &(dyn Any + Send) = &*panic;
    let text = text
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| text.downcast_ref::<&str>().map(|&it| it.to_owned()));
    format!("the provider panicked: {}", text.as_deref().unwrap_or("without a text"))
}

#[cfg(test)]
mod tests;
