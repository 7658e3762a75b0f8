//! Calls to the card provider, and what their failures mean.
//!
//! The one distinction that matters: a call that was certainly never sent, and a call whose outcome
//! is unknown. Everything but a refused connection is the second kind. Nothing is retried here: one
//! attempt makes one call, and only the next attempt, which knows it is one, makes another.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use reqwest::{Client, Response, StatusCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::messages::{Charge, ChargeRequest};

pub struct ProviderClient {
    http: Client,
    url: String,
    delay_max: Duration,
}

#[derive(Debug)]
pub enum ChargeOutcome {
    Charged(Charge),
    Refused,
}

#[derive(Debug)]
pub enum ProviderError {
    /// The call never left: nothing happened at the provider.
    NotSent(reqwest::Error),
    /// No answer that says what happened.
    NoAnswer(reqwest::Error),
    /// An answer, but none that says what happened.
    Unclear(StatusCode),
}

impl ProviderClient {
    /// `delay_max` is the provider's promise: a call older than that has been decided.
    pub fn new(url: &str, timeout: Duration, delay_max: Duration) -> reqwest::Result<Self> {
        let http = Client::builder()
            .no_proxy()
            .tcp_nodelay(true)
            .timeout(timeout)
            .retry(reqwest::retry::never())
            .build()?;
        Ok(Self {
            http,
            url: url.trim_end_matches('/').to_owned(),
            delay_max,
        })
    }

    pub fn delay_max(&self) -> Duration {
        self.delay_max
    }

    pub async fn charge(&self, request: &ChargeRequest) -> Result<ChargeOutcome, ProviderError> {
        let call = self
            .http
            .post(format!("{}/charges", self.url))
            .json(request);
        let response = call.send().await.map_err(ProviderError::from_reqwest)?;
        match response.status() {
            StatusCode::OK | StatusCode::CREATED => {
                Ok(ChargeOutcome::Charged(read_json(response).await?))
            }
            StatusCode::PAYMENT_REQUIRED => Ok(ChargeOutcome::Refused),
            status => Err(ProviderError::Unclear(status)),
        }
    }

    /// The charge made under `key`, if there is one by now.
    pub async fn find(&self, key: &str) -> Result<Option<Charge>, ProviderError> {
        #[derive(Deserialize)]
        struct Found {
            charges: Vec<Charge>,
        }
        let call = self
            .http
            .get(format!("{}/charges", self.url))
            .query(&[("key", key)]);
        let response = call.send().await.map_err(ProviderError::from_reqwest)?;
        match response.status() {
            StatusCode::OK => Ok(read_json::<Found>(response)
                .await?
                .charges
                .into_iter()
                .next()),
            status => Err(ProviderError::Unclear(status)),
        }
    }
}

async fn read_json<T: DeserializeOwned>(response: Response) -> Result<T, ProviderError> {
    response.json().await.map_err(ProviderError::NoAnswer)
}

impl ProviderError {
    fn from_reqwest(error: reqwest::Error) -> Self {
        if error.is_connect() {
            Self::NotSent(error)
        } else {
            Self::NoAnswer(error)
        }
    }
}

impl fmt::Display for ProviderError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotSent(_) => write!(formatter, "the card provider cannot be reached"),
            Self::NoAnswer(error) if error.is_timeout() => {
                write!(formatter, "the card provider did not answer in time")
            }
            Self::NoAnswer(_) => write!(formatter, "the card provider's answer got lost"),
            Self::Unclear(status) => write!(formatter, "the card provider answered {status}"),
        }
    }
}

impl Error for ProviderError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::NotSent(error) | Self::NoAnswer(error) => Some(error),
            Self::Unclear(_) => None,
        }
    }
}
