//! Faults: what is wrong with a call, and for which calls.

use std::{collections::HashMap, time::Duration};

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// What is wrong with a call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Fault {
    /// It is refused, and not carried out.
    Error {
        /// The HTTP status.
        status: u16,
        /// The vendor's code.
        code: String,
        /// After how many milliseconds to try again, in the vendor's header.
        #[serde(default)]
        retry_after: Option<u64>,
    },
    /// It is carried out, and answered by this error.
    ErrorAfter {
        /// The HTTP status.
        status: u16,
        /// The vendor's code.
        code: String,
    },
    /// An error with the status 200. It is not carried out.
    ErrorInside200 {
        /// The vendor's code.
        code: String,
    },
    /// The connection is closed before it is carried out.
    ResetBefore,
    /// The connection is closed after it was carried out.
    ResetAfter,
    /// It is not carried out, and nothing comes.
    HangBefore,
    /// It is carried out, and nothing comes.
    HangAfter,
    /// It is carried out, and its answer comes after so many milliseconds.
    Late {
        /// How much later.
        milliseconds: u64,
    },
    /// It is carried out, and half of its answer comes.
    Truncated,
    /// It is carried out, and its answer is this large.
    Huge {
        /// How large.
        bytes: usize,
    },
    /// The page of a proxy.
    Html {
        /// The HTTP status.
        status: u16,
    },
    /// A redirect to elsewhere.
    Redirect {
        /// Where to.
        location: String,
    },
    /// A page names itself as the next page.
    RepeatedPage,
    /// The token of a page is refused.
    PageTokenRefused,
    /// A page has none of its groups, and does not say so.
    LostPage,
    /// All objects have fields that nobody knows.
    UnknownFields,
    /// All states are words that nobody knows.
    UnknownStates,
    /// Numbers and booleans are text.
    NumbersAsText,
    /// Texts that are numbers are numbers.
    TextAsNumbers,
    /// Nothing is in the list, as for callers without permission.
    EmptyList,
}

/// For which calls.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rule {
    /// Of this action; otherwise of all.
    #[serde(default)]
    pub action: Option<String>,
    /// Only for this page of a list; the first is 1.
    #[serde(default)]
    pub page: Option<u32>,
    /// So many calls that match are spared first.
    #[serde(default)]
    pub skip: u32,
    /// For so many calls; otherwise for all.
    #[serde(default)]
    pub times: Option<u32>,
    /// For this share of the calls that match.
    #[serde(default)]
    pub probability: Option<f64>,
    /// What is wrong.
    pub fault: Fault,
}

/// All rules.
pub(crate) struct Faults {
    rules: Vec<Rule>,
    rng: StdRng,
    pages: HashMap<String, u32>,
}

/// The keys of lists.
const LISTS: [&str; 4] = ["ContainerGroups", "Data", "TagResources", "MonitorDatas"];
/// The keys of states.
const STATES: [&str; 4] = ["Status", "Phase", "State", "status"];

// === impl Fault ===

impl Fault {
    /// Whether the call is carried out.
    pub(crate) fn is_carried_out(&self) -> bool {
        !matches!(
            self,
            Self::Error { .. }
                | Self::ErrorInside200 { .. }
                | Self::ResetBefore
                | Self::HangBefore
                | Self::Html { .. }
                | Self::Redirect { .. }
                | Self::PageTokenRefused
        )
    }

    /// Changes the body of an answer.
    pub(crate) fn change(&self, body: &mut Value, request: &Value) {
        match self {
            // The first page has no token: the second one then repeats itself.
            Self::RepeatedPage
                if body["NextToken"].as_str().is_some_and(|token| !token.is_empty())
                    && request["NextToken"].is_string() =>
            {
                body["NextToken"] = request["NextToken"].clone();
            }
            Self::LostPage => empty_lists(body),
            Self::EmptyList => {
                empty_lists(body);
                if !body["NextToken"].is_null() {
                    body["NextToken"] = "".into();
                }
                if !body["TotalCount"].is_null() {
                    body["TotalCount"] = 0.into();
                }
            }
            Self::UnknownFields => visit(body, &mut |_, value| {
                if let Some(map) = value.as_object_mut() {
                    map.insert("ShinyNewField".to_owned(), json!({"Depth": [1, "two", null, {"Three": 3}]}));
                    map.insert("Nothing".to_owned(), Value::Null);
                }
            }),
            Self::UnknownStates => visit(body, &mut |key, value| {
                if STATES.contains(&key) && value.is_string() {
                    *value = "Transmogrifying".into();
                }
            }),
            Self::NumbersAsText => visit(body, &mut |_, value| {
                if value.is_number() || value.is_boolean() {
                    *value = value.to_string().into();
                }
            }),
            Self::TextAsNumbers => visit(body, &mut |_, value| {
                if let Some(number) = value.as_str().and_then(|text| text.parse::<f64>().ok()) {
                    *value = number.into();
                }
            }),
            _ => {}
        }
    }
}

fn empty_lists(body: &mut Value) {
    for list in LISTS {
        if body[list].is_array() {
            body[list] = json!([]);
        }
    }
    // Indexing has added what was not there.
    if let Some(map) = body.as_object_mut() {
        map.retain(|_, value| !value.is_null());
    }
}

fn visit(value: &mut Value, change: &mut impl FnMut(&str, &mut Value)) {
    fn inner(key: &str, value: &mut Value, change: &mut impl FnMut(&str, &mut Value)) {
        match value {
            Value::Object(map) => {
                for (key, value) in map.iter_mut() {
                    inner(key, value, change);
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| inner(key, item, change)),
            _ => {}
        }
        change(key, value);
    }
    inner("", value, change);
}

// === impl Rule ===

impl Rule {
    /// A fault of every call.
    pub fn always(fault: Fault) -> Self {
        Self { action: None, page: None, skip: 0, times: None, probability: None, fault }
    }

    /// A fault of the next call of this action.
    pub fn once(action: &str, fault: Fault) -> Self {
        Self { action: Some(action.to_owned()), times: Some(1), ..Self::always(fault) }
    }

    /// For this action.
    #[must_use]
    pub fn of(self, action: &str) -> Self {
        Self { action: Some(action.to_owned()), ..self }
    }

    /// For this page.
    #[must_use]
    pub fn on_page(self, page: u32) -> Self {
        Self { page: Some(page), ..self }
    }

    /// For so many calls.
    #[must_use]
    pub fn times(self, times: u32) -> Self {
        Self { times: Some(times), ..self }
    }

    /// For this share of calls.
    #[must_use]
    pub fn with_probability(self, probability: f64) -> Self {
        Self { probability: Some(probability), ..self }
    }
}

// === impl Faults ===

impl Faults {
    pub(crate) fn new(seed: u64) -> Self {
        Self { rules: Vec::new(), rng: StdRng::seed_from_u64(seed), pages: HashMap::new() }
    }

    pub(crate) fn add(&mut self, rule: Rule) {
        self.rules.push(rule);
    }

    pub(crate) fn clear(&mut self) {
        self.rules.clear();
    }

    /// The number of the page that the request asks for.
    fn page(&self, request: &Value) -> u32 {
        match request["NextToken"].as_str() {
            Some(token) if !token.is_empty() => self.pages.get(token).copied().unwrap_or(2),
            _ => 1,
        }
    }

    /// Notes which page the answer's token is for.
    pub(crate) fn note_page(&mut self, request: &Value, answer: &Value) {
        if let Some(token) = answer["NextToken"].as_str().filter(|token| !token.is_empty()) {
            let next = self.page(request) + 1;
            self.pages.insert(token.to_owned(), next);
        }
    }

    /// What is wrong with this call.
    pub(crate) fn take(&mut self, action: &str, request: &Value) -> Option<Fault> {
        let page = self.page(request);
        for rule in &mut self.rules {
            if rule.action.as_deref().is_some_and(|wanted| wanted != action)
                || rule.page.is_some_and(|wanted| wanted != page)
                || rule.times == Some(0)
                || rule.probability.is_some_and(|share| !self.rng.random_bool(share.clamp(0.0, 1.0)))
            {
                continue;
            }
            if rule.skip > 0 {
                rule.skip -= 1;
                continue;
            }
            rule.times = rule.times.map(|times| times - 1);
            return Some(rule.fault.clone());
        }
        None
    }
}

/// How long a late answer takes.
pub(crate) fn delay(fault: &Fault) -> Option<Duration> {
    match fault {
        Fault::Late { milliseconds } => Some(Duration::from_millis(*milliseconds)),
        _ => None,
    }
}
