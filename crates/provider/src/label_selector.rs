//! Label selectors in the text syntax of Kubernetes: `disk=ssd,gpu in (a100,h100),!old,generation>5`.
//!
//! [`Requirement`] is displayed in this syntax, and [`parse`] reads what `labels.Parse` of apimachinery reads. A requirement can be turned into
//! one of node affinity and back.

use std::{fmt, str::CharIndices};

use k8s_openapi::api::core::v1::NodeSelectorRequirement;

#[cfg(test)]
mod tests;

/// The maximum length of a label value, and of a key without its prefix.
const NAME_MAX: usize = 63;
/// The maximum length of the prefix of a key.
const PREFIX_MAX: usize = 253;
/// Numbers with more digits may not fit into 64 bits.
const DIGITS_MAX: usize = 18;

/// One requirement of a selector.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Requirement {
    key: String,
    operator: Operator,
    /// One value for operators that compare, any number for sets, none for the others.
    values: Vec<String>,
}

/// How a requirement relates a label to its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operator {
    /// `key=value`
    Equals,
    /// `key!=value`
    NotEquals,
    /// `key in (a,b)`
    In,
    /// `key notin (a,b)`
    NotIn,
    /// `key`
    Exists,
    /// `!key`
    DoesNotExist,
    /// `key>5`
    GreaterThan,
    /// `key<5`
    LessThan,
}

/// Why a text is not a selector.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ParseError(String);

// === impl Requirement ===

impl Requirement {
    /// Returns a requirement, or an error that says what is wrong with the key or the values.
    pub fn new(key: &str, operator: Operator, values: Vec<String>) -> Result<Self, ParseError> {
        check_key(key)?;
        if let Some(value) = values.iter().find(|value| !is_value(value)) {
            return Err(ParseError(format!(
                "{value:?} is not a value of label {key}: expected at most {NAME_MAX} letters, digits, '-', '_' and '.'"
            )));
        }
        let number = |value: &String| {
            (1..=DIGITS_MAX).contains(&value.len()) && value.bytes().all(|byte| byte.is_ascii_digit())
        };
        let expected = match operator {
            Operator::Equals | Operator::NotEquals if values.len() != 1 => "one value",
            Operator::In | Operator::NotIn if values.is_empty() => "at least one value",
            Operator::Exists | Operator::DoesNotExist if !values.is_empty() => "no value",
            Operator::GreaterThan | Operator::LessThan if values.len() != 1 || !values.iter().all(number) => {
                "a whole number"
            }
            _ => return Ok(Self { key: key.to_owned(), operator, values }),
        };
        Err(ParseError(format!("label {key} is compared with {values:?}: expected {expected}")))
    }

    /// The requirement of a `nodeSelector`.
    pub fn equals(key: &str, value: &str) -> Result<Self, ParseError> {
        Self::new(key, Operator::Equals, vec![value.to_owned()])
    }

    /// The label.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The value if the label must equal it and nothing else.
    pub fn equal_value(&self) -> Option<&str> {
        match (self.operator, self.values.as_slice()) {
            (Operator::Equals, [value]) => Some(value),
            _ => None,
        }
    }
}

impl TryFrom<&NodeSelectorRequirement> for Requirement {
    type Error = ParseError;

    fn try_from(expression: &NodeSelectorRequirement) -> Result<Self, ParseError> {
        let operator = match expression.operator.as_str() {
            "In" => Operator::In,
            "NotIn" => Operator::NotIn,
            "Exists" => Operator::Exists,
            "DoesNotExist" => Operator::DoesNotExist,
            "Gt" => Operator::GreaterThan,
            "Lt" => Operator::LessThan,
            other => return Err(ParseError(format!("{other:?} is not an operator of node affinity"))),
        };
        Self::new(&expression.key, operator, expression.values.clone().unwrap_or_default())
    }
}

impl From<Requirement> for NodeSelectorRequirement {
    fn from(requirement: Requirement) -> Self {
        let operator = match requirement.operator {
            Operator::Equals | Operator::In => "In",
            Operator::NotEquals | Operator::NotIn => "NotIn",
            Operator::Exists => "Exists",
            Operator::DoesNotExist => "DoesNotExist",
            Operator::GreaterThan => "Gt",
            Operator::LessThan => "Lt",
        };
        Self {
            key: requirement.key,
            operator: operator.to_owned(),
            values: (!requirement.values.is_empty()).then_some(requirement.values),
        }
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (key, values) = (&self.key, self.values.join(","));
        match self.operator {
            Operator::Equals => write!(f, "{key}={values}"),
            Operator::NotEquals => write!(f, "{key}!={values}"),
            Operator::In => write!(f, "{key} in ({values})"),
            Operator::NotIn => write!(f, "{key} notin ({values})"),
            Operator::Exists => write!(f, "{key}"),
            Operator::DoesNotExist => write!(f, "!{key}"),
            Operator::GreaterThan => write!(f, "{key}>{values}"),
            Operator::LessThan => write!(f, "{key}<{values}"),
        }
    }
}

fn check_key(key: &str) -> Result<(), ParseError> {
    if is_key(key) {
        return Ok(());
    }
    Err(ParseError(format!(
        "{key:?} is not a label: expected name or prefix/name, of letters, digits, '-', '_' and '.'"
    )))
}

/// Whether a text can be the key of a label: `name` or `prefix/name`.
pub fn is_key(text: &str) -> bool {
    let (prefix, name) = match text.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, text),
    };
    !name.is_empty() && is_value(name) && prefix.is_none_or(is_subdomain)
}

/// Whether a text can be the value of a label. It may be empty.
pub fn is_value(text: &str) -> bool {
    let inside = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.');
    let outside = |letter: Option<char>| letter.is_none_or(|letter| letter.is_ascii_alphanumeric());
    text.len() <= NAME_MAX
        && text.chars().all(inside)
        && outside(text.chars().next())
        && outside(text.chars().next_back())
}

fn is_subdomain(text: &str) -> bool {
    let is_part = |part: &str| {
        let inside = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '-';
        !part.is_empty() && part.chars().all(inside) && !part.starts_with('-') && !part.ends_with('-')
    };
    text.len() <= PREFIX_MAX && text.split('.').all(is_part)
}

/// Parses a selector. An empty text is a selector without requirements, which selects everything.
pub fn parse(text: &str) -> Result<Vec<Requirement>, ParseError> {
    let mut tokens = Tokens::of(text).peekable();
    let mut requirements = Vec::new();
    if tokens.peek().is_none() {
        return Ok(requirements);
    }
    loop {
        requirements.push(parse_requirement(&mut tokens)?);
        match tokens.next() {
            None => return Ok(requirements),
            Some(",") => {}
            Some(other) => {
                return Err(ParseError(format!(
                    "{other:?} after {:?}: expected ','",
                    requirements.last().map(ToString::to_string).unwrap_or_default()
                )));
            }
        }
    }
}

/// The tokens of a selector: `(`, `)`, `,`, operators, and everything between them and white space.
struct Tokens<'a> {
    text: &'a str,
    rest: CharIndices<'a>,
}

type PeekableTokens<'a> = std::iter::Peekable<Tokens<'a>>;

// === impl Tokens ===

impl<'a> Tokens<'a> {
    fn of(text: &'a str) -> Self {
        Self { text, rest: text.char_indices() }
    }
}

impl<'a> Iterator for Tokens<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let (start, first) = self.rest.find(|(_, letter)| !is_space(*letter))?;
        let continues = |at: usize, letter: char| match first {
            '=' | '!' => at == start + 1 && letter == '=',
            _ if is_symbol(first) => false,
            _ => !is_symbol(letter) && !is_space(letter),
        };
        loop {
            let ahead = self.rest.clone().next();
            match ahead {
                Some((at, letter)) if continues(at, letter) => {
                    self.rest.next();
                }
                Some((at, _)) => return Some(&self.text[start..at]),
                None => return Some(&self.text[start..]),
            }
        }
    }
}

fn is_space(letter: char) -> bool {
    matches!(letter, ' ' | '\t' | '\r' | '\n')
}

fn is_symbol(letter: char) -> bool {
    matches!(letter, '=' | '!' | '(' | ')' | ',' | '>' | '<')
}

/// Whether a token is a key or a value.
fn is_identifier(token: &str) -> bool {
    !token.starts_with(is_symbol)
}

fn parse_requirement(tokens: &mut PeekableTokens<'_>) -> Result<Requirement, ParseError> {
    let negated = tokens.next_if_eq(&"!").is_some();
    let key = match tokens.next() {
        Some(token) if is_identifier(token) => token,
        Some(token) => return Err(ParseError(format!("{token:?} where a label was expected"))),
        None => return Err(ParseError("the end where a label was expected".to_owned())),
    };
    check_key(key)?;
    if negated {
        return Requirement::new(key, Operator::DoesNotExist, Vec::new());
    }
    let operator = match tokens.peek() {
        None | Some(&",") => return Requirement::new(key, Operator::Exists, Vec::new()),
        Some(&("=" | "==")) => Operator::Equals,
        Some(&"!=") => Operator::NotEquals,
        Some(&"in") => Operator::In,
        Some(&"notin") => Operator::NotIn,
        Some(&">") => Operator::GreaterThan,
        Some(&"<") => Operator::LessThan,
        Some(other) => {
            return Err(ParseError(format!(
                "{other:?} after label {key}: expected '=', '!=', 'in', 'notin', '>', '<' or ','"
            )));
        }
    };
    tokens.next();
    let values = match operator {
        Operator::In | Operator::NotIn => parse_set(key, tokens)?,
        _ => vec![tokens.next_if(|token| is_identifier(token)).unwrap_or_default().to_owned()],
    };
    Requirement::new(key, operator, values)
}

/// Parses `(a,b)`. Values may be empty, and `()` has one empty value.
fn parse_set(key: &str, tokens: &mut PeekableTokens<'_>) -> Result<Vec<String>, ParseError> {
    if tokens.next_if_eq(&"(").is_none() {
        return Err(ParseError(format!("no '(' before the values of label {key}")));
    }
    let mut values = Vec::new();
    loop {
        let value = tokens.next_if(|token| is_identifier(token)).unwrap_or_default();
        if !values.iter().any(|other| other == value) {
            values.push(value.to_owned());
        }
        match tokens.next() {
            Some(",") => {}
            Some(")") => return Ok(values),
            Some(other) => {
                return Err(ParseError(format!(
                    "{other:?} among the values of label {key}: expected ',' or ')'"
                )));
            }
            None => return Err(ParseError(format!("no ')' after the values of label {key}"))),
        }
    }
}
